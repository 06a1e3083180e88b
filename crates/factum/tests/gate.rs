//! The test that `derive(Event)` adds to a crate, in a crate of its own: from the first lock file to a contract that
//! is broken on purpose and mended by what the text says (EVT-3).
//!
//! The crate is compiled as a user's domain crate is, without the feature `service`. Cargo's work for it is kept, so
//! that only the first run takes long.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

const EVENTS: &str = "\
use factum::{Event, Money, uuid::Uuid};

#[derive(Debug, Event)]
#[event(kind = \"order.confirmed.v1\", aggregate = \"Order\", topic = \"orders.confirmed\")]
pub struct OrderConfirmed {
    #[event(aggregate_id)]
    pub order_id: Uuid,
    pub total: Money,
    pub r#type: Option<String>,
}

// Of an event that only tests use, nothing is locked.
#[derive(Debug, Event)]
#[event(kind = \"order.tried.v1\", aggregate = \"Order\", topic = \"orders.tried\", unlocked)]
pub struct OrderTried {
    #[event(aggregate_id)]
    pub order_id: Uuid,
}
";

struct Domain(TempDir);

/// What `cargo test` said.
struct Ran {
    passed: bool,
    output: String,
}

impl Domain {
    fn new() -> Domain {
        let folder = TempDir::new().expect("a folder");
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let manifest = format!(
            "[package]\nname = \"domain\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n\
             [dependencies]\nfactum = {{ path = {here:?}, default-features = false }}\n\
             [lints.rust]\nwarnings = \"deny\"\n"
        );
        fs::write(folder.path().join("Cargo.toml"), manifest).expect("the manifest is written");
        // The versions that are here already.
        fs::copy(
            here.join("../../Cargo.lock"),
            folder.path().join("Cargo.lock"),
        )
        .expect("a copy");
        fs::create_dir(folder.path().join("src")).expect("a folder");
        let domain = Domain(folder);
        domain.write(EVENTS);
        domain
    }

    fn write(&self, events: &str) {
        fs::write(self.0.path().join("src/lib.rs"), events).expect("the source is written");
    }

    fn lock(&self) -> String {
        let path = self.0.path().join("contracts/order.confirmed.v1.json");
        fs::read_to_string(path).unwrap_or_default()
    }

    fn test(&self, contracts: &str) -> Ran {
        let cargo = std::env::var_os("CARGO").expect("cargo runs this test");
        let output = Command::new(cargo)
            .current_dir(self.0.path())
            .args(["test", "--offline", "--lib", "--", "--nocapture"])
            .env(
                "CARGO_TARGET_DIR",
                Path::new(env!("CARGO_TARGET_TMPDIR")).join("gate"),
            )
            .env("FACTUM_CONTRACTS", contracts)
            .env_remove("RUSTFLAGS")
            .env_remove("CI")
            .output()
            .expect("cargo runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ran {
            passed: output.status.success(),
            output: text(&output.stdout) + &text(&output.stderr),
        }
    }

    fn fails(&self, contracts: &str, parts: &[&str]) {
        let ran = self.test(contracts);
        assert!(!ran.passed, "{}", ran.output);
        for part in parts {
            assert!(ran.output.contains(part), "{part:?} in {}", ran.output);
        }
    }

    fn passes(&self, contracts: &str) {
        let ran = self.test(contracts);
        assert!(ran.passed, "{}", ran.output);
        // Of one event and not of the unlocked one.
        assert!(ran.output.contains("1 passed"), "{}", ran.output);
    }
}

#[test]
fn an_event_is_locked_changed_broken_and_mended_by_what_cargo_test_says() {
    let domain = Domain::new();
    domain.fails(
        "",
        &[
            "contract_of_order_confirmed",
            "the event `order.confirmed.v1` has no lock file",
            "where: src/lib.rs:5;",
            "FACTUM_CONTRACTS=update cargo test",
        ],
    );
    domain.fails("overwrite", &["FACTUM_CONTRACTS is \"overwrite\""]);
    domain.passes("update");
    let first = domain.lock();
    domain.passes("");

    // A compatible change is written when it is asked for, and not before.
    let grown = EVENTS.replace("pub total", "pub note: Option<String>,\n    pub total");
    domain.write(&grown);
    domain.fails(
        "",
        &["FIELD_ADDED", "src/lib.rs:8", "The change is compatible"],
    );
    assert_eq!(domain.lock(), first);
    domain.passes("update");
    assert_ne!(domain.lock(), first);
    let second = domain.lock();

    // A breaking one never is.
    domain.write(&grown.replace("pub r#type: Option<String>", "pub r#type: String"));
    for contracts in ["", "update"] {
        domain.fails(
            contracts,
            &[
                "FIELD_BECAME_REQUIRED (EVT-3): `type` was optional and is required now",
                "where: src/lib.rs:10",
                "who:   new consumers, reading what old producers write",
                "proof: {\"eventId\":",
                "is refused: expected text at $.type",
                "make `type` optional again (`Option<…>`)",
                "add `order.confirmed.v2`",
            ],
        );
        assert_eq!(domain.lock(), second, "FACTUM_CONTRACTS={contracts}");
    }
    // The mend that the text names.
    domain.write(&grown);
    domain.passes("");
}
