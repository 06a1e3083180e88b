//! A project in Node around freshly generated files, with the packages of `examples/billing-node`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use factum::Event as _;
use factum_contract::{AsyncApi, Exported, JsonSchema, TypeScript, Zod};

use crate::orders::OrderConfirmed;
use crate::sample::SampleTaken;

/// The example whose packages are used.
pub(crate) fn billing_node() -> PathBuf {
    root().join("examples/billing-node")
}

/// Compiles the example, once for all tests of this program.
pub(crate) fn built_billing_node() {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        let mut tsc = Command::new(modules().join(".bin/tsc"));
        succeeds(tsc.args(["-p", "."]).current_dir(billing_node()), "tsc");
    });
}

/// The packages, which must have been installed.
fn modules() -> PathBuf {
    let modules = billing_node().join("node_modules");
    assert!(
        modules.join("zod").is_dir(),
        "the packages of examples/billing-node are missing: run npm ci --prefix examples/billing-node"
    );
    modules
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the crate lies in the workspace")
}

/// A folder with generated files and the programs of `tests/node`, compiled.
pub(crate) struct Project {
    folder: tempfile::TempDir,
}

impl Project {
    /// Made once for all tests of this program. It fails where prettier or `tsc --strict` finds anything.
    pub(crate) fn built() -> &'static Project {
        static PROJECT: OnceLock<Project> = OnceLock::new();
        PROJECT.get_or_init(Project::build)
    }

    fn build() -> Project {
        let modules = modules();
        let folder = tempfile::tempdir().expect("a folder");
        let project = Project { folder };
        let contracts = [SampleTaken::contract(), OrderConfirmed::contract()];
        let four = TypeScript::new();
        let three = TypeScript::new().zod(Zod::Three);
        project.write(
            "generated",
            &four.export(&contracts).expect("names are free"),
        );
        project.write("exports", &JsonSchema::new().export(&contracts));
        project.write("exports", &AsyncApi::titled("Samples").export(&contracts));
        let mut files = three.export(&contracts).expect("names are free");
        // Both releases lie beside each other; the older one has another name here.
        for text in files.values_mut() {
            *text = text.replace("from \"zod\"", "from \"zod3\"");
        }
        project.write("generated-zod3", &files);
        let odd = crate::odd::contracts();
        project.write("odd", &four.export(&odd).expect("names are free"));
        project.write("odd", &JsonSchema::new().export(&odd));
        project.write("odd", &AsyncApi::titled("Odd").export(&odd));
        for entry in std::fs::read_dir(root().join("tests/node")).expect("the programs are there") {
            let path = entry.expect("a file").path();
            let name = path.file_name().expect("a name");
            std::fs::copy(&path, project.path().join(name)).expect("a file can be copied");
        }
        let shared = "compression.ts";
        let text = std::fs::read_to_string(billing_node().join("src").join(shared))
            .expect("the example has it");
        project.write("billing", &Exported::from([(shared.to_owned(), text)]));
        let modules_here = project.path().join("node_modules");
        std::os::unix::fs::symlink(&modules, modules_here).expect("a link can be made");
        project.tool(
            "prettier",
            &["--check", "generated", "exports", "generated-zod3", "odd"],
        );
        project.tool("tsc", &["-p", "."]);
        project
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    fn write(&self, below: &str, files: &Exported) {
        for (path, text) in files {
            let path = self.path().join(below).join(path);
            let parent = path.parent().expect("a file lies in a folder");
            std::fs::create_dir_all(parent).expect("a folder can be made");
            std::fs::write(path, text).expect("a file can be written");
        }
    }

    fn tool(&self, name: &str, arguments: &[&str]) {
        let mut command = Command::new(self.path().join("node_modules/.bin").join(name));
        succeeds(command.args(arguments).current_dir(self.path()), name);
    }

    /// Runs a program of `tests/node` to its end.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> String {
        let mut command = Command::new("node");
        command
            .arg(self.path().join("dist").join(program))
            .args(arguments)
            .current_dir(self.path());
        succeeds(&mut command, program)
    }
}

fn succeeds(command: &mut Command, name: &str) -> String {
    let output = command
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{name} doesn't start: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{name} ended with {}:\n{}\n{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}
