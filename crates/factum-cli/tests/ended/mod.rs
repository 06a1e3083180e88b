//! How a run of the command ended.

#[allow(dead_code, reason = "not every test has a terminal")]
pub(crate) mod terminal;

use std::process::Output;

use serde_json::Value;

/// What came out of it.
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// The closing JSON object: the last line of stdout.
    #[allow(dead_code, reason = "not every test asks for it")]
    pub(crate) fn json(&self) -> Value {
        let line = self.stdout.lines().last().unwrap_or("");
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line:?}"))
    }
}

impl From<Output> for Ended {
    fn from(output: Output) -> Ended {
        Ended {
            code: output.status.code().expect("it ended by itself"),
            stdout: String::from_utf8(output.stdout).expect("stdout is text"),
            stderr: String::from_utf8(output.stderr).expect("stderr is text"),
        }
    }
}
