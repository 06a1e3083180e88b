//! The servers start, answer, come back after a stop, and leave nothing behind.

use std::net::TcpStream;
use std::path::PathBuf;

use factum_testing::kafka::KafkaServer;
use factum_testing::postgres::{PostgresBinaries, PostgresServer};

fn accepts(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// The server's directory, as its Debug text names it.
fn dir_of(server: &impl std::fmt::Debug) -> PathBuf {
    let text = format!("{server:?}");
    let dir = text
        .split('"')
        .nth(1)
        .expect("a directory in the Debug text");
    PathBuf::from(dir)
}

#[test]
fn postgres_comes_back_on_its_port_and_leaves_nothing() {
    let mut server = PostgresServer::start(&PostgresBinaries::find().unwrap()).unwrap();
    let (port, dir) = (server.port(), dir_of(&server));
    assert!(accepts(port) && dir.is_dir());
    assert!(
        !dir.join("password").exists(),
        "the password file outlived initdb"
    );

    server.stop().unwrap();
    assert!(!accepts(port));
    server.start_again().unwrap();
    assert!(accepts(port));

    drop(server);
    assert!(!accepts(port));
    assert!(!dir.exists(), "{} was left behind", dir.display());
}

#[test]
fn kafka_comes_back_on_its_port_and_leaves_nothing() {
    let mut server = KafkaServer::start().unwrap();
    let port = server
        .bootstrap()
        .rsplit(':')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    let dir = dir_of(&server);
    assert!(accepts(port) && dir.is_dir());

    server.stop().unwrap();
    assert!(!accepts(port));
    server.start_again().unwrap();
    assert!(accepts(port));

    drop(server);
    assert!(!accepts(port));
    assert!(!dir.exists(), "{} was left behind", dir.display());
}

#[test]
fn a_release_without_a_package_is_refused_by_name() {
    let refused = PostgresBinaries::version(13).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "PostgreSQL 13 is not packaged; 14 to 18 are"
    );
}
