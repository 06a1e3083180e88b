//! A run of the command on a terminal of its own.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use nix::pty::{Winsize, openpty};

/// What a person of that many columns saw, and the exit code.
pub(crate) struct Seen {
    pub(crate) code: i32,
    /// Line breaks as `\n`.
    pub(crate) screen: String,
}

/// Runs the command with all three streams on a terminal, and types `typed` at once.
pub(crate) fn on_terminal(columns: u16, mut command: Command, typed: &str) -> Seen {
    let size = Winsize {
        ws_row: 40,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let pair = openpty(Some(&size), None).expect("a terminal");
    let end = || Stdio::from(pair.slave.try_clone().expect("a descriptor"));
    let (stdin, stdout, stderr) = (end(), end(), end());
    let mut child = command
        .stdin(stdin)
        .stdout(stdout)
        .stderr(stderr)
        .spawn()
        .expect("the command starts");
    // It holds the terminal's end, too.
    drop(command);
    drop(pair.slave);
    let mut keys = File::from(pair.master.try_clone().expect("a descriptor"));
    keys.write_all(typed.as_bytes()).expect("keys are typed");
    let mut screen = File::from(pair.master);
    let mut seen = Vec::new();
    let mut part = [0; 4096];
    // Linux says EIO once nobody has the other end any more.
    while let Ok(n @ 1..) = screen.read(&mut part) {
        seen.extend_from_slice(&part[..n]);
    }
    let status = child.wait().expect("it ends");
    Seen {
        code: status.code().expect("it ended by itself"),
        screen: String::from_utf8(seen)
            .expect("a screen holds text")
            .replace("\r\n", "\n"),
    }
}
