//! The servers start, answer, come back after a stop, and leave nothing behind.

use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use factum_testing::cluster::KafkaCluster;
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

/// Waits until a look says so, for at most a minute.
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "waited in vain: {what}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_cluster_lives_on_without_one_node_and_takes_it_back() {
    let cluster = KafkaCluster::start().unwrap();
    let ports: Vec<u16> = cluster
        .bootstrap()
        .split(',')
        .map(|address| address.rsplit(':').next().unwrap().parse().unwrap())
        .collect();
    assert_eq!((ports.len(), cluster.nodes()), (3, 3));
    assert!(ports.iter().all(|port| accepts(*port)));

    // The first question for a coordinator makes the topic of the groups' offsets.
    wait_for("a coordinator", || cluster.coordinator("testing").ok());
    let offsets = "__consumer_offsets";
    wait_for("all copies of it", || {
        cluster.is_in_sync(offsets).ok().filter(|in_sync| *in_sync)
    });
    assert!(cluster.leader("testing.nothing", 0).is_err());

    let controller = wait_for("a controller", || cluster.controller().ok());
    cluster.kill(controller).unwrap();
    assert!(!accepts(ports[controller]));
    let next = wait_for("another controller", || {
        cluster.controller().ok().filter(|next| *next != controller)
    });
    assert_ne!(next, controller);
    wait_for("leaders elsewhere", || {
        let leaders: Vec<usize> = (0..4)
            .filter_map(|partition| cluster.leader(offsets, partition).ok().flatten())
            .collect();
        (leaders.len() == 4 && !leaders.contains(&controller)).then_some(())
    });
    wait_for("a coordinator that lives", || {
        cluster
            .coordinator("testing")
            .ok()
            .filter(|node| *node != controller)
    });
    assert!(!cluster.is_in_sync(offsets).unwrap(), "one copy is down");

    cluster.start_again(controller).unwrap();
    wait_for("all copies again", || {
        cluster.is_in_sync(offsets).ok().filter(|in_sync| *in_sync)
    });

    for node in 0..3 {
        cluster.kill(node).unwrap();
    }
    assert!(cluster.coordinator("testing").is_err());
    cluster.start_all_again(&[0, 1, 2]).unwrap();
    wait_for("a coordinator after all fell", || {
        cluster.coordinator("testing").ok()
    });

    drop(cluster);
    assert!(!ports.iter().any(|port| accepts(*port)));
}
