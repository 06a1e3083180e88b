//! `factum contract export` as a user calls it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use factum_contract::lock;
use factum_event::{Contract, FieldShape, Shape};
use tempfile::TempDir;

fn contract(event_type: &str, name: &str) -> Contract {
    Contract {
        event_type: event_type.to_owned(),
        aggregate_type: "Order".to_owned(),
        topic: "orders".to_owned(),
        restricted: false,
        name: name.to_owned(),
        supersedes: None,
        aggregate_id: "orderId".to_owned(),
        fields: vec![FieldShape::new("orderId", Shape::Uuid)],
        definitions: Default::default(),
    }
}

/// A workspace with a crate that has lock files.
struct Workspace(TempDir);

impl Workspace {
    fn of(contracts: &[Contract]) -> Workspace {
        let workspace = Workspace(TempDir::new().unwrap());
        let folder = workspace.0.path().join("orders");
        fs::create_dir_all(folder.join(lock::FOLDER)).unwrap();
        fs::write(folder.join("Cargo.toml"), "").unwrap();
        for contract in contracts {
            workspace.lock(contract);
        }
        workspace
    }

    fn lock(&self, contract: &Contract) {
        let folder = self.0.path().join("orders");
        lock::write(&lock::path(&folder, &contract.event_type), contract).unwrap();
    }

    fn out(&self) -> std::path::PathBuf {
        self.0.path().join("generated")
    }

    fn export(&self, arguments: &[&str]) -> (i32, serde_json::Value, String) {
        let Output {
            status,
            stdout,
            stderr,
        } = Command::new(env!("CARGO_BIN_EXE_factum"))
            .args(["contract", "export", "--json", "--in"])
            .arg(self.0.path())
            .arg("--out")
            .arg(self.out())
            .args(arguments)
            .output()
            .unwrap();
        let last = String::from_utf8(stdout).unwrap();
        let last = last.lines().last().unwrap_or("null");
        (
            status.code().unwrap(),
            serde_json::from_str(last).unwrap(),
            String::from_utf8(stderr).unwrap(),
        )
    }
}

fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().display().to_string();
                found.push((name, fs::read(path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

const ALL: [&str; 3] = ["--typescript", "--json-schema", "--asyncapi"];

#[test]
fn an_export_is_the_same_bytes_again_and_writes_only_what_changed() {
    let confirmed = contract("order.confirmed.v1", "OrderConfirmed");
    let workspace = Workspace::of(&[
        confirmed.clone(),
        contract("order.cancelled.v1", "OrderCancelled"),
    ]);
    let (code, told, _) = workspace.export(&ALL);
    assert_eq!((code, &told["events"]), (0, &2.into()));
    let first = files(&workspace.out());
    let names: Vec<&str> = first.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "asyncapi.json",
            "decode.ts",
            "event-registry.ts",
            "index.ts",
            "json-schema/order.cancelled.v1.schema.json",
            "json-schema/order.confirmed.v1.schema.json",
            "order/domain/event/order-cancelled.v1.event.ts",
            "order/domain/event/order-confirmed.v1.event.ts",
            "wire.ts",
        ]
    );
    let (code, told, _) = workspace.export(&ALL);
    assert_eq!(code, 0);
    assert_eq!(told["written"], serde_json::json!([]));
    assert_eq!(told["unchanged"], 9);
    assert_eq!(files(&workspace.out()), first);

    let mut more = confirmed;
    more.fields.push(FieldShape::new("paid", Shape::Boolean));
    workspace.lock(&more);
    let (_, told, _) = workspace.export(&["--typescript"]);
    assert_eq!(
        told["written"],
        serde_json::json!(["order/domain/event/order-confirmed.v1.event.ts"])
    );
}

#[test]
fn stale_files_are_removed_and_those_of_people_and_of_other_kinds_stay() {
    let workspace = Workspace::of(&[
        contract("order.confirmed.v1", "OrderConfirmed"),
        contract("order.cancelled.v1", "OrderCancelled"),
    ]);
    workspace.export(&ALL);
    let mine = workspace.out().join("order/domain/event/mine.ts");
    fs::write(&mine, "export const mine = 1;\n").unwrap();
    let (code, told, _) = workspace.export(&["--typescript", "--only", "order.confirmed.v1"]);
    assert_eq!(code, 0);
    assert_eq!(
        told["removed"],
        serde_json::json!(["order/domain/event/order-cancelled.v1.event.ts"])
    );
    assert!(mine.is_file());
    let schema = "json-schema/order.cancelled.v1.schema.json";
    assert!(workspace.out().join(schema).is_file());
}

#[test]
fn a_file_that_no_export_made_is_in_the_way_and_nothing_is_written() {
    let workspace = Workspace::of(&[contract("order.confirmed.v1", "OrderConfirmed")]);
    fs::create_dir(workspace.out()).unwrap();
    fs::write(workspace.out().join("index.ts"), "export const mine = 1;\n").unwrap();
    let (code, told, error) = workspace.export(&["--typescript"]);
    assert_eq!((code, &told["ok"]), (2, &false.into()));
    assert!(
        error.contains("in the way, and no export made them: index.ts"),
        "{error}"
    );
    assert_eq!(files(&workspace.out()).len(), 1);
}

#[test]
fn a_folder_for_a_file_and_a_file_for_a_folder_are_in_the_way() {
    let workspace = Workspace::of(&[contract("order.confirmed.v1", "OrderConfirmed")]);
    let out = workspace.out();
    let in_the_way = |what: &str| {
        let before = files(workspace.0.path());
        let (code, told, error) = workspace.export(&ALL);
        assert_eq!((code, &told["ok"]), (2, &false.into()), "{error}");
        assert!(
            error.contains(&format!("in the way, and no export made them: {what}\n")),
            "{error}"
        );
        assert!(error.contains("nothing was written"), "{error}");
        assert_eq!(files(workspace.0.path()), before);
    };
    fs::create_dir_all(out.join("index.ts")).unwrap();
    in_the_way("index.ts (a folder)");
    fs::write(out.join("json-schema"), "mine").unwrap();
    fs::write(out.join("order"), "mine").unwrap();
    in_the_way("index.ts (a folder), json-schema (a file), order (a file)");
    fs::remove_dir_all(&out).unwrap();
    fs::write(&out, "mine").unwrap();
    in_the_way(&format!("{} (a file)", out.display()));
}

#[test]
fn folders_that_a_removal_empties_are_removed_and_others_stay() {
    let workspace = Workspace::of(&[contract("order.confirmed.v1", "OrderConfirmed")]);
    let out = workspace.out();
    workspace.export(&["--typescript"]);
    fs::create_dir(out.join("mine")).unwrap();
    let (code, told, _) = workspace.export(&["--typescript", "--context", "Order=sales"]);
    assert_eq!(code, 0);
    assert_eq!(
        told["removed"],
        serde_json::json!(["order/domain/event/order-confirmed.v1.event.ts"])
    );
    assert!(!out.join("order").exists());
    assert!(out.join("mine").is_dir());
    // A folder in which something else lies.
    fs::write(out.join("sales/domain/mine.ts"), "").unwrap();
    workspace.export(&["--typescript"]);
    assert!(!out.join("sales/domain/event").exists());
    assert!(out.join("sales/domain/mine.ts").is_file());
}

#[test]
fn a_damaged_lock_file_is_wrong_usage_as_the_help_says() {
    let workspace = Workspace::of(&[contract("order.confirmed.v1", "OrderConfirmed")]);
    let folder = workspace.0.path().join("orders");
    fs::write(lock::path(&folder, "order.confirmed.v1"), "{").unwrap();
    let (code, ..) = workspace.export(&["--typescript"]);
    assert_eq!(code, 2);
    let help = Command::new(env!("CARGO_BIN_EXE_factum"))
        .args(["contract", "export", "--help"])
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let codes = help.split("Exit codes:").nth(1).unwrap();
    let usage = codes.split("2 ").nth(1).unwrap();
    assert!(usage.contains("lock file"), "{help}");
}

#[test]
fn counts_are_in_good_english() {
    let workspace = Workspace::of(&[contract("order.confirmed.v1", "OrderConfirmed")]);
    let out = Command::new(env!("CARGO_BIN_EXE_factum"))
        .args(["contract", "export", "--json-schema", "--in"])
        .arg(workspace.0.path())
        .arg("--out")
        .arg(workspace.out())
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(
        text.ends_with("\n1 event: 1 file written, 0 removed, 0 unchanged\n"),
        "{text}"
    );
}

#[test]
fn wrong_usage_says_what_to_write() {
    let workspace = Workspace::of(&[contract("order.confirmed.v1", "OrderConfirmed")]);
    for (arguments, part) in [
        (&[][..], "add --typescript, --json-schema or --asyncapi"),
        (
            &["--typescript", "--context", "sales"],
            "--context Order=sales",
        ),
        (
            &["--typescript", "--context", "Order=../x"],
            "can't be a context",
        ),
        (
            &["--typescript", "--context", "Ordr=sales"],
            "did you mean `Order`?",
        ),
        (
            &["--typescript", "--context", "Customer=sales"],
            "the aggregates that there are: Order",
        ),
        (
            &[
                "--typescript",
                "--context",
                "Order=sales",
                "--context",
                "Order=shop",
            ],
            "name one context for each aggregate",
        ),
        (
            &["--typescript", "--only", "order.paid.v1"],
            "no event is called `order.paid.v1`",
        ),
        (&["--typescript", "--zod", "5"], "possible values: 3, 4"),
    ] {
        let (code, _, error) = workspace.export(arguments);
        assert_eq!(code, 2, "{error}");
        assert!(error.contains(part), "{error}");
    }
    let empty = Workspace::of(&[]);
    let (code, _, error) = empty.export(&["--typescript"]);
    assert_eq!(code, 2);
    assert!(
        error.contains("FACTUM_CONTRACTS=update cargo test"),
        "{error}"
    );
}

#[test]
fn contexts_and_the_release_of_zod_are_chosen() {
    let workspace = Workspace::of(&[contract("order.confirmed.v1", "OrderConfirmed")]);
    let (code, ..) = workspace.export(&["--typescript", "--context", "Order=sales", "--zod", "3"]);
    assert_eq!(code, 0);
    let event = workspace
        .out()
        .join("sales/domain/event/order-confirmed.v1.event.ts");
    assert!(event.is_file());
    let wire = fs::read_to_string(workspace.out().join("wire.ts")).unwrap();
    assert!(wire.contains("z.ZodType<T, z.ZodTypeDef, unknown>"));
}
