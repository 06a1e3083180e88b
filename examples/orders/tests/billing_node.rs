//! What `examples/billing-node` is generated from.

use std::path::{Path, PathBuf};

use factum::Event as _;
use factum_contract::TypeScript;
use orders::events::OrderConfirmed;

fn generated() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../billing-node/src/generated")
}

/// `FACTUM_EXPORTS=update` writes the files, which are committed, so that the example can be read and used without Rust.
#[test]
fn the_generated_files_of_billing_node_are_fresh() {
    let files = TypeScript::new()
        .export(&[OrderConfirmed::contract()])
        .unwrap();
    for (path, text) in &files {
        let path = generated().join(path);
        if std::env::var_os("FACTUM_EXPORTS").is_some_and(|value| value == "update") {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == *text,
            "{} is out of date: run FACTUM_EXPORTS=update cargo test --manifest-path examples/Cargo.toml \
             --test billing_node",
            path.display()
        );
    }
}
