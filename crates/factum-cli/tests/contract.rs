//! `factum contract` on real folders and real git repositories: what it prints, and its exit codes.

mod ended;

use std::fs;
use std::path::Path;
use std::process::Command;

use factum_contract::lock;
use factum_event::{Contract, FieldShape, Shape};
use serde_json::{Value, json};
use tempfile::TempDir;

use ended::Ended;

/// A workspace with the crate `orders`, and its repository.
struct Workspace {
    folder: TempDir,
}

impl Workspace {
    fn new() -> Workspace {
        let workspace = Workspace {
            folder: TempDir::new().expect("a folder"),
        };
        workspace.write("orders/Cargo.toml", "[package]\nname = \"orders\"\n");
        workspace.write("orders/src/lib.rs", SOURCE);
        workspace
    }

    /// One with `order.confirmed.v1` and `order.paid.v1` committed on the branch `main`.
    fn published() -> Workspace {
        let workspace = Workspace::new();
        workspace.lock("orders", &confirmed());
        workspace.lock("orders", &paid());
        workspace.git(&["init", "--quiet", "--initial-branch=main"]);
        workspace.commit();
        workspace
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("the folder is made");
        fs::write(path, text).expect("the file is written");
    }

    fn lock(&self, of: &str, contract: &Contract) {
        let path = lock::path(&self.path().join(of), &contract.event_type);
        lock::write(&path, contract).expect("the lock file is written");
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.path().join(path)).expect("the file is there");
    }

    fn git(&self, arguments: &[&str]) {
        let output = Command::new("git")
            .current_dir(self.path())
            // What a developer has set for themselves, such as signing, is nothing here.
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .args(["-c", "user.name=test", "-c", "user.email=test@example.com"])
            .args(arguments)
            .output()
            .expect("git runs");
        assert!(output.status.success(), "git {arguments:?}: {output:?}");
    }

    fn commit(&self) {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message", "a change"]);
    }

    fn run(&self, arguments: &[&str]) -> Ended {
        run_in(self.path(), arguments)
    }
}

fn run_in(folder: &Path, arguments: &[&str]) -> Ended {
    Command::new(env!("CARGO_BIN_EXE_factum"))
        .current_dir(folder)
        .arg("contract")
        .args(arguments)
        .env_remove("GITHUB_ACTIONS")
        // No repository above the temporary folder is taken for its own.
        .env("GIT_CEILING_DIRECTORIES", std::env::temp_dir())
        .output()
        .expect("the command runs")
        .into()
}

const SOURCE: &str = "\
use factum::{Event, uuid::Uuid};

#[derive(Debug, Event)]
#[event(kind = \"order.confirmed.v1\", aggregate = \"Order\", topic = \"orders.confirmed\")]
pub struct OrderConfirmed {
    #[event(aggregate_id)]
    pub order_id: Uuid,
    pub note: Option<String>,
    pub items: Vec<OrderItem>,
}

#[derive(Debug, factum::Snapshot)]
pub struct OrderItem {
    pub article: Uuid,
}

#[derive(Debug, Event)]
#[event(kind = \"order.paid.v1\", aggregate = \"Order\", topic = \"orders.paid\")]
pub struct OrderPaid {
    #[event(aggregate_id)]
    pub order_id: Uuid,
}

further_events! { OrderShipped: \"order.shipped.v1\", OrderPaid2: \"order.paid.v2\" }
";

fn any_text() -> Shape {
    Shape::Text {
        min_chars: None,
        max_chars: None,
        pattern: None,
    }
}

fn event(kind: &str, fields: Vec<FieldShape>) -> Contract {
    let id = FieldShape::new("orderId", Shape::Uuid);
    Contract {
        event_type: kind.to_owned(),
        aggregate_type: "Order".to_owned(),
        topic: "orders.confirmed".to_owned(),
        restricted: false,
        name: "OrderConfirmed".to_owned(),
        supersedes: None,
        aggregate_id: "orderId".to_owned(),
        fields: [id].into_iter().chain(fields).collect(),
        definitions: Default::default(),
    }
}

fn optional(name: &str) -> FieldShape {
    FieldShape::new(name, Shape::Nullable(Box::new(any_text())))
}

fn confirmed() -> Contract {
    let items = Shape::Array {
        items: Box::new(Shape::Object("OrderItem".to_owned())),
        min_items: None,
        max_items: None,
    };
    let mut contract = event(
        "order.confirmed.v1",
        vec![optional("note"), FieldShape::new("items", items)],
    );
    let article = FieldShape::new("article", Shape::Uuid);
    contract
        .definitions
        .insert("OrderItem".to_owned(), vec![article]);
    contract
}

fn paid() -> Contract {
    let mut contract = event("order.paid.v1", vec![]);
    contract.name = "OrderPaid".to_owned();
    contract
}

/// `note` is required, and an item's `article` is text.
fn broken() -> Contract {
    let mut contract = confirmed();
    contract.fields[1].optional = false;
    let article = FieldShape::new("article", any_text());
    contract
        .definitions
        .insert("OrderItem".to_owned(), vec![article]);
    contract
}

#[test]
fn nothing_changed_and_a_compatible_change_are_exit_code_0() {
    let workspace = Workspace::published();
    let ended = workspace.run(&["check", "--against", "main", "--json"]);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    let json = ended.json();
    assert_eq!((&json["ok"], &json["events"]), (&json!(true), &json!(2)));
    assert_eq!(json["breaking"], json!([]));

    let mut new = confirmed();
    new.fields.push(optional("channel"));
    workspace.lock("orders", &new);
    let ended = workspace.run(&["check", "--against", "main", "--json"]);
    assert_eq!(ended.code, 0, "{}", ended.stdout);
    assert_eq!(ended.json()["compatible"][0]["rule"], "FIELD_ADDED");
    let line = "compatible: order.confirmed.v1: `channel` was added";
    assert!(ended.stdout.contains(line), "{}", ended.stdout);
}

#[test]
fn a_broken_contract_is_exit_code_1_with_file_line_rule_document_side_and_mend() {
    let workspace = Workspace::published();
    workspace.lock("orders", &broken());
    let ended = workspace.run(&["check", "--against", "main", "--json"]);
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    let json = ended.json();
    let place = |breaking: &Value| {
        let of = |key: &str| breaking[key].as_str().unwrap_or_default().to_owned();
        (
            of("rule"),
            of("field"),
            of("side"),
            format!("{}:{}", of("file"), breaking["line"]),
        )
    };
    let breaking = json["breaking"].as_array().expect("a list");
    let places: Vec<_> = breaking.iter().map(place).collect();
    let expected = [
        (
            "FIELD_BECAME_REQUIRED",
            "note",
            "new consumers",
            "orders/src/lib.rs:8",
        ),
        (
            "FIELD_RETYPED",
            "items[].article",
            "old consumers",
            "orders/src/lib.rs:14",
        ),
    ];
    let expected = expected.map(|(rule, field, side, place)| {
        (
            rule.to_owned(),
            field.to_owned(),
            side.to_owned(),
            place.to_owned(),
        )
    });
    assert_eq!(places, expected);
    assert_eq!(breaking[1]["event"], "order.confirmed.v1");
    let document = breaking[1]["counterexample"].as_str().expect("text");
    let document: Value = serde_json::from_str(document).expect("JSON");
    assert_eq!(document["eventType"], "order.confirmed.v1");
    assert_eq!(document["items"][0]["article"], "text");
    let mend = breaking[1]["mend"].as_str().expect("text");
    assert!(mend.contains("`order.confirmed.v2`"), "{mend}");

    // The same, for people.
    for part in [
        "FIELD_RETYPED (EVT-3)",
        "where: orders/src/lib.rs:14",
        "who:   old consumers",
        "mend:  ",
    ] {
        assert!(ended.stdout.contains(part), "{part} in {}", ended.stdout);
    }
}

#[test]
fn annotations_for_github_stand_beside_the_field_seen_from_the_top_of_the_repository() {
    let workspace = Workspace::published();
    workspace.lock("orders", &broken());
    let check = ["check", "--against", "main", "--github"];
    let ended = run_in(&workspace.path().join("orders"), &check);
    assert_eq!(ended.code, 1);
    let annotations: Vec<&str> = ended
        .stdout
        .lines()
        .filter(|line| line.starts_with("::error "))
        .collect();
    assert_eq!(annotations.len(), 2, "{}", ended.stdout);
    let begins = "::error file=orders/src/lib.rs,line=8,title=order.confirmed.v1 is broken%3A FIELD_BECAME_REQUIRED::";
    assert!(annotations[0].starts_with(begins), "{}", annotations[0]);
    assert!(
        annotations[0].contains("%0Amend: make `note` optional again"),
        "{}",
        annotations[0]
    );
    // Not asked for, not printed.
    let plain = workspace.run(&check[..3]);
    assert!(!plain.stdout.contains("::error"), "{}", plain.stdout);
}

#[test]
fn a_field_that_no_source_declares_is_shown_in_the_lock_file() {
    let workspace = Workspace::published();
    workspace.remove("orders/src/lib.rs");
    workspace.lock("orders", &broken());
    let json = workspace
        .run(&["check", "--against", "main", "--json"])
        .json();
    assert_eq!(
        json["breaking"][0]["file"],
        "orders/contracts/order.confirmed.v1.json"
    );
    let line = json["breaking"][0]["line"].as_u64().expect("a line") as usize;
    let text = fs::read_to_string(
        workspace
            .path()
            .join("orders/contracts/order.confirmed.v1.json"),
    );
    assert!(
        text.expect("the lock file")
            .lines()
            .nth(line - 1)
            .expect("a line")
            .contains("\"note\"")
    );
}

#[test]
fn a_removed_event_is_broken_until_it_is_accepted() {
    let workspace = Workspace::published();
    workspace.remove("orders/contracts/order.paid.v1.json");
    let ended = workspace.run(&["check", "--against", "main", "--json"]);
    assert_eq!(ended.code, 1);
    assert_eq!(ended.json()["breaking"][0]["rule"], "EVENT_REMOVED");
    assert!(
        ended
            .stdout
            .contains("`factum contract check --against main --allow-removed order.paid.v1`"),
        "{}",
        ended.stdout
    );

    let check = [
        "check",
        "--against",
        "main",
        "--allow-removed",
        "order.paid.v1",
    ];
    assert_eq!(workspace.run(&check).code, 0);
    // For another event it says nothing.
    let other = [
        "check",
        "--against",
        "main",
        "--allow-removed",
        "order.confirmed.v1",
    ];
    assert_eq!(workspace.run(&other).code, 1);
    let unknown = workspace.run(&[
        "check",
        "--against",
        "main",
        "--allow-removed",
        "order.payed.v1",
    ]);
    assert_eq!(unknown.code, 2);
    assert!(
        unknown.stderr.contains("did you mean `order.paid.v1`?"),
        "{}",
        unknown.stderr
    );
}

#[test]
fn an_event_that_main_got_since_is_no_removal_on_a_branch() {
    let workspace = Workspace::published();
    workspace.git(&["checkout", "--quiet", "-b", "feature"]);
    workspace.git(&["checkout", "--quiet", "main"]);
    workspace.lock("orders", &event("order.shipped.v1", vec![]));
    workspace.commit();
    workspace.git(&["checkout", "--quiet", "feature"]);
    let ended = workspace.run(&["check", "--against", "main"]);
    assert_eq!(ended.code, 0, "{}", ended.stdout);
}

#[test]
fn two_crates_with_a_lock_file_of_one_event_are_refused_and_both_files_are_named() {
    let workspace = Workspace::published();
    // A consumer's own, narrower view of the event, in a crate of its own.
    workspace.write("mailer/Cargo.toml", "[package]\n");
    let view = event("order.confirmed.v1", vec![]);
    workspace.lock("mailer", &view);
    let rules = |ended: &Ended| -> Vec<Value> {
        let json = ended.json();
        let breaking = json["breaking"].as_array().expect("a list");
        breaking.iter().map(|of| of["rule"].clone()).collect()
    };
    let check = ["check", "--against", "main", "--json"];
    let ended = workspace.run(&check);
    assert_eq!(ended.code, 1, "{}", ended.stdout);
    // It is no new event: it is compared with what the other crate has published.
    assert_eq!(
        rules(&ended),
        ["FIELD_REMOVED", "FIELD_REMOVED", "LOCKED_TWICE"]
    );
    for part in [
        "two crates hold different contracts",
        "mailer/contracts/order.confirmed.v1.json and orders/contracts/order.confirmed.v1.json",
        "#[event(unlocked)]",
    ] {
        assert!(ended.stdout.contains(part), "{part} in {}", ended.stdout);
    }

    // A copy, which an export refuses as well.
    workspace.lock("mailer", &confirmed());
    let ended = workspace.run(&check);
    assert_eq!(
        (ended.code, rules(&ended)),
        (1, vec![json!("LOCKED_TWICE")])
    );
    assert!(
        ended.stdout.contains("They are the same now"),
        "{}",
        ended.stdout
    );
    // To take one of two away is no removal.
    workspace.commit();
    workspace.remove("mailer/contracts/order.confirmed.v1.json");
    let ended = workspace.run(&check);
    assert_eq!(ended.code, 0, "{}", ended.stdout);
}

#[test]
fn a_lock_file_that_nothing_declares_or_locks_any_more_is_a_removed_event() {
    let workspace = Workspace::published();
    let check = ["check", "--against", "HEAD", "--json"];
    let renamed = SOURCE.replace("order.paid.v1", "order.settled.v1");
    let unlocked = SOURCE.replace("\"order.paid.v1\"", "\"order.paid.v1\", unlocked");
    let commented = renamed.clone()
        + "// #[event(kind = \"order.paid.v1\")]\npub const OF_OLD: &str = \"order.paid.v1\";\n";
    for (source, why, place) in [
        (
            &renamed,
            "nothing in its crate declares",
            "orders/contracts/order.paid.v1.json",
        ),
        (
            &commented,
            "nothing in its crate declares",
            "orders/contracts/order.paid.v1.json",
        ),
        (&unlocked, "its struct is `unlocked`", "orders/src/lib.rs"),
    ] {
        workspace.write("orders/src/lib.rs", source);
        let ended = workspace.run(&check);
        assert_eq!(ended.code, 1, "{}", ended.stdout);
        let breaking = &ended.json()["breaking"];
        assert_eq!(breaking.as_array().map(Vec::len), Some(1), "{breaking}");
        assert_eq!(
            (
                &breaking[0]["rule"],
                &breaking[0]["event"],
                &breaking[0]["file"]
            ),
            (
                &json!("EVENT_REMOVED"),
                &json!("order.paid.v1"),
                &json!(place)
            )
        );
        for part in [
            why,
            "delete orders/contracts/order.paid.v1.json",
            "is what consumers wait for",
            "`factum contract check --against HEAD --allow-removed order.paid.v1`",
        ] {
            assert!(ended.stdout.contains(part), "{part} in {}", ended.stdout);
        }
        let diff = workspace.run(&["diff", "order.paid.v1", "--against", "HEAD"]);
        assert_eq!(diff.code, 1, "{}", diff.stdout);
        let mut allowed = check.to_vec();
        allowed.extend(["--allow-removed", "order.paid.v1"]);
        assert_eq!(workspace.run(&allowed).code, 0);
    }
    let list = workspace.run(&["list", "--json"]);
    assert_eq!(list.json()["events"][1]["declared"], "unlocked");
    assert!(
        list.stdout.contains("(its struct is `unlocked`"),
        "{}",
        list.stdout
    );

    workspace.write("orders/src/lib.rs", "");
    let json = workspace.run(&check).json();
    assert_eq!(json["breaking"].as_array().map(Vec::len), Some(2), "{json}");

    // Never published: there is nothing to accept.
    workspace.write("orders/src/lib.rs", SOURCE);
    workspace.lock("orders", &event("order.returned.v1", vec![]));
    let ended = workspace.run(&check);
    assert_eq!(ended.code, 1, "{}", ended.stdout);
    let mend = &ended.json()["breaking"][0]["mend"];
    assert!(!mend.to_string().contains("--allow-removed"), "{mend}");
}

#[test]
fn nothing_to_compare_is_exit_code_2() {
    let workspace = Workspace::published();
    let nowhere = TempDir::new().expect("a folder");
    let nowhere = nowhere.path().to_str().expect("text");
    for arguments in [
        &["check", "--in", "orders/src", "--against", "main"][..],
        &["check", "--against", nowhere],
        &["diff", "order.paid.v1", "--against", nowhere],
    ] {
        let ended = workspace.run(arguments);
        assert_eq!(ended.code, 2, "{}", ended.stdout);
        let layout = "`<crate>/contracts/<kind>.json` beside `<crate>/Cargo.toml`";
        assert!(ended.stderr.contains(layout), "{}", ended.stderr);
    }
    // The first lock files of a repository are no fault.
    let first = Workspace::new();
    first.git(&["init", "--quiet", "--initial-branch=main"]);
    first.commit();
    first.lock("orders", &confirmed());
    let ended = first.run(&["check", "--against", "main"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(
        ended.stdout.contains("1 event, 1 of them new"),
        "{}",
        ended.stdout
    );
}

#[test]
fn a_shallow_clone_without_the_fork_is_refused_and_not_compared_with_the_tip() {
    let workspace = Workspace::published();
    workspace.git(&["checkout", "--quiet", "-b", "feature"]);
    workspace.write("README.md", "A feature.");
    workspace.commit();
    workspace.git(&["checkout", "--quiet", "main"]);
    workspace.lock("orders", &event("order.shipped.v1", vec![]));
    workspace.commit();
    let clone = TempDir::new().expect("a folder");
    let url = format!("file://{}", workspace.path().display());
    let cloned = Command::new("git")
        .args([
            "clone",
            "--quiet",
            "--depth=1",
            "--no-single-branch",
            "--branch=feature",
            &url,
        ])
        .arg(clone.path())
        .output()
        .expect("git runs");
    assert!(cloned.status.success(), "{cloned:?}");
    let ended = run_in(
        clone.path(),
        &["check", "--against", "origin/main", "--json"],
    );
    assert_eq!(ended.code, 2, "{}", ended.stdout);
    let json = ended.json();
    let mend = json["mend"].as_str().expect("text");
    for part in ["git fetch --unshallow", "fetch-depth: 0"] {
        assert!(mend.contains(part), "{mend}");
    }
    assert!(json["where"].is_string(), "{json}");
    // With the whole history it is a comparison with the fork.
    let fetched = Command::new("git")
        .current_dir(clone.path())
        .args(["fetch", "--quiet", "--unshallow"])
        .output()
        .expect("git runs");
    assert!(fetched.status.success(), "{fetched:?}");
    let ended = run_in(clone.path(), &["check", "--against", "origin/main"]);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
}

#[test]
fn a_crate_that_moved_keeps_its_contracts() {
    let workspace = Workspace::published();
    fs::create_dir(workspace.path().join("services")).expect("a folder");
    fs::rename(
        workspace.path().join("orders"),
        workspace.path().join("services/orders"),
    )
    .expect("it moves");
    let ended = workspace.run(&["check", "--against", "main"]);
    assert_eq!(ended.code, 0, "{}", ended.stdout);
    workspace.lock("services/orders", &broken());
    assert_eq!(workspace.run(&["check", "--against", "main"]).code, 1);
}

#[test]
fn what_cant_be_read_is_exit_code_2_and_all_of_it_is_named() {
    let workspace = Workspace::published();
    workspace.write("orders/contracts/order.paid.v1.json", "{\"format\": 9}");
    workspace.write("orders/contracts/order.confirmed.v1.json", "{");
    let ended = workspace.run(&["check", "--against", "main", "--json"]);
    assert_eq!(ended.code, 2);
    for part in [
        "order.paid.v1.json: the lock file has format 9",
        "order.confirmed.v1.json: line 1",
    ] {
        assert!(ended.stderr.contains(part), "{part} in {}", ended.stderr);
    }
    assert_eq!(ended.json()["ok"], json!(false));

    // In the published commit, too.
    workspace.commit();
    workspace.lock("orders", &confirmed());
    workspace.lock("orders", &paid());
    let ended = workspace.run(&["check", "--against", "main"]);
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.contains("in the commit "), "{}", ended.stderr);
}

#[test]
fn an_unknown_ref_a_shallow_clone_and_no_repository_are_told_apart() {
    let workspace = Workspace::published();
    let ended = workspace.run(&["check", "--against", "mian"]);
    assert_eq!(ended.code, 2);
    assert!(
        ended.stderr.contains("git knows no commit `mian`"),
        "{}",
        ended.stderr
    );
    assert!(ended.stderr.contains("origin/mian"), "{}", ended.stderr);
    let ended = workspace.run(&["check", "--against", "origin/main"]);
    assert!(
        ended.stderr.contains("`git fetch origin main`") && !ended.stderr.contains("origin/origin"),
        "{}",
        ended.stderr
    );
    for name in ["HEAD~99", "v1.4.0", "4f2c1a9", "refs/heads/mian"] {
        let ended = workspace.run(&["check", "--against", name]);
        assert_eq!(ended.code, 2);
        assert!(!ended.stderr.contains("origin/"), "{}", ended.stderr);
    }

    let first = "main~1";
    workspace.lock("orders", &event("order.shipped.v1", vec![]));
    workspace.commit();
    let clone = TempDir::new().expect("a folder");
    let url = format!("file://{}", workspace.path().display());
    let cloned = Command::new("git")
        .args(["clone", "--quiet", "--depth=1", &url])
        .arg(clone.path())
        .output()
        .expect("git runs");
    assert!(cloned.status.success(), "{cloned:?}");
    let ended = run_in(clone.path(), &["check", "--against", first]);
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.contains("fetch-depth: 0"), "{}", ended.stderr);

    let elsewhere = Workspace::new();
    let ended = elsewhere.run(&["check", "--against", "main"]);
    assert_eq!(ended.code, 2);
    assert!(
        ended.stderr.contains("there is no git repository"),
        "{}",
        ended.stderr
    );
    // An option in disguise is no ref.
    let ended = workspace.run(&["check", "--against=--all"]);
    assert_eq!(ended.code, 2, "{}", ended.stdout);
}

#[test]
fn a_folder_serves_without_git_and_a_name_that_is_both_is_asked_back() {
    let old = Workspace::new();
    old.lock("orders", &confirmed());
    let new = Workspace::new();
    new.lock("orders", &broken());
    let against = old.path().to_str().expect("text");
    let ended = new.run(&["check", "--against", against]);
    assert_eq!(ended.code, 1, "{}", ended.stderr);

    let both = Workspace::published();
    both.write("main/readme", "");
    let ended = both.run(&["check", "--against", "main"]);
    assert_eq!(ended.code, 2);
    assert!(
        ended.stderr.contains("a folder and a git ref"),
        "{}",
        ended.stderr
    );
    assert_eq!(both.run(&["check", "--against", "refs/heads/main"]).code, 0);
}

#[test]
fn only_lock_files_beside_a_cargo_toml_count_and_built_things_are_passed_over() {
    let workspace = Workspace::published();
    for of in [
        "target/package/orders",
        "web/node_modules/orders",
        ".cache/orders",
    ] {
        workspace.write(&format!("{of}/Cargo.toml"), "[package]\n");
        workspace.write(&format!("{of}/contracts/order.paid.v1.json"), "{");
    }
    workspace.write("law/contracts/lease.json", "{\"tenant\": 1}");
    workspace.write("orders/contracts/.order.paid.v1.17-0", "{");
    workspace.write("orders/contracts/README.md", "What was published.");
    let ended = workspace.run(&["list", "--json"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let json = ended.json();
    let files: Vec<&Value> = json["events"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|e| &e["file"])
        .collect();
    assert_eq!(
        files,
        [
            "orders/contracts/order.confirmed.v1.json",
            "orders/contracts/order.paid.v1.json"
        ]
    );
    // What is committed of such folders is passed over, too.
    workspace.commit();
    assert_eq!(workspace.run(&["check", "--against", "main"]).code, 0);
}

#[test]
fn show_and_diff_speak_of_one_event_and_help_with_its_name() {
    let workspace = Workspace::published();
    let ended = workspace.run(&["show", "order.confirmed.v1", "--json"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(
        ended.stdout.contains("note     text, may be absent"),
        "{}",
        ended.stdout
    );
    assert!(
        ended.stdout.contains("items    a list, each OrderItem"),
        "{}",
        ended.stdout
    );
    assert_eq!(
        ended.json()["contracts"][0]["contract"]["kind"],
        "order.confirmed.v1"
    );

    let diff = |kind: &str| workspace.run(&["diff", kind, "--against", "main", "--json"]);
    assert_eq!(diff("order.paid.v1").code, 0);
    workspace.lock("orders", &broken());
    workspace.lock("orders", &event("order.shipped.v1", vec![]));
    let ended = diff("order.confirmed.v1");
    assert_eq!(
        (ended.code, &ended.json()["changes"][0]["rule"]),
        (1, &json!("FIELD_BECAME_REQUIRED"))
    );
    let ended = diff("order.paid.v1");
    assert_eq!((ended.code, &ended.json()["changes"]), (0, &json!([])));
    let ended = diff("order.shipped.v1");
    assert_eq!((ended.code, &ended.json()["new"]), (0, &json!(true)));

    for arguments in [
        &["show", "order.confirmd.v1"][..],
        &["diff", "order.confirmed.1", "--against", "main"],
    ] {
        let ended = workspace.run(arguments);
        assert_eq!(ended.code, 2, "{}", ended.stdout);
        assert!(
            ended.stderr.contains("did you mean `order.confirmed.v1`?"),
            "{}",
            ended.stderr
        );
    }
    // Another version of it, and the name of its struct.
    for (asked, meant) in [
        ("order.confirmed.v3", "order.confirmed.v1"),
        ("order.paid.v90", "order.paid.v1"),
        ("OrderPaid", "order.paid.v1"),
    ] {
        let ended = workspace.run(&["show", asked, "--json"]);
        assert_eq!(ended.code, 2, "{}", ended.stdout);
        let mend = format!("did you mean `{meant}`?");
        assert_eq!(ended.json()["mend"], json!(mend));
    }
    assert_eq!(workspace.run(&["check"]).code, 2, "without --against");
}
