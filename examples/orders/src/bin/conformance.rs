//! Runs test vectors against the contract of `order.confirmed.v1`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use orders::conformance::{Wrong, check, read_file};

/// Runs test vectors against the contract of order.confirmed.v1.
///
/// Prints each vector that comes out wrong, then a summary. The exit code is 0 when all are right,
/// 1 when one is wrong, 2 when a file can't be used.
#[derive(Debug, Parser)]
#[command(
    name = "conformance",
    after_help = "Example:\n  conformance tests/conformance/order-confirmed.json"
)]
struct Options {
    /// Files of vectors, of the form of tests/conformance/order-confirmed.json
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// End the output with one JSON object on one line: vectors, right, wrong
    #[arg(long)]
    json: bool,
}

#[expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command speaks to its user"
)]
fn main() -> ExitCode {
    let options = Options::parse();
    let (vectors, wrong) = match run(&options) {
        Ok(result) => result,
        Err(error) => {
            eprintln!("error: {error:#}");
            return ExitCode::from(2);
        }
    };
    for wrong in &wrong {
        println!("wrong: {wrong}");
    }
    let right = vectors - wrong.len();
    println!("conformance: {right} of {vectors} vectors are right");
    if options.json {
        let summary = serde_json::json!({"vectors": vectors, "right": right, "wrong": wrong.len()});
        println!("{summary}");
    }
    if wrong.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    }
}

fn run(options: &Options) -> Result<(usize, Vec<Wrong>)> {
    let mut vectors = Vec::new();
    for file in &options.files {
        vectors.extend(read_file(file)?);
    }
    let wrong = check(&vectors);
    Ok((vectors.len(), wrong))
}
