//! Ten thousand charges at a provider that fails in every way, by a service that is killed at every step of a call.

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use factum_fault::Point;
use factum_testing::eventually;
use factum_tests::provider::{Behaviour, Provider, Seen};
use factum_tests::{Entry as _, On, Scene, entry_on_topic};

entry_on_topic!(charged, "t.charged");
use charged::Posted;

/// For all of it, on a busy machine.
const LONG: Duration = Duration::from_secs(600);
const PARTITIONS: i32 = 2;
/// Where the service dies, and at the how manieth passing.
const DEATHS: [(Point, u32); 10] = [
    (Point::CallWriteBefore, 30),
    (Point::CallWriteAfter, 30),
    (Point::CallClaimBefore, 5),
    (Point::CallClaimAfter, 5),
    (Point::CallSendBefore, 40),
    (Point::CallSendAfter, 40),
    (Point::CallRecordBefore, 5),
    (Point::CallRecordAfter, 5),
    (Point::CallAnswerBefore, 3),
    (Point::CallAnswerAfter, 3),
];

/// Never charged: the provider refuses it.
fn is_refused(seq: u64) -> bool {
    seq % 500 == 7
}

/// Charged, and never answered.
fn is_never_answered(seq: u64) -> bool {
    seq % 500 == 8
}

/// A provider's bad day: a quarter of the requests fail, before or after the charge.
fn bad_day(seen: &Seen) -> Behaviour {
    let body: serde_json::Value = serde_json::from_slice(&seen.body).expect("JSON");
    let seq = body["seq"].as_u64().expect("a number");
    if is_refused(seq) {
        return Behaviour::Say(422, None);
    }
    if is_never_answered(seq) {
        return Behaviour::ChargeAndFail;
    }
    match fastrand::u32(0..100) {
        0 => Behaviour::Hang,
        1 => Behaviour::ChargeAndHang,
        2..6 => Behaviour::ChargeAndDrop,
        6..10 => Behaviour::Drop,
        10..14 => Behaviour::ChargeAndFail,
        14..18 => Behaviour::Say(409, None),
        18..21 => Behaviour::Say(429, Some(1)),
        21..25 => Behaviour::Say(503, None),
        _ => Behaviour::Answer,
    }
}

/// A process that is killed with the test.
struct Process(Child);

impl Process {
    fn start(scene: &Scene, provider: &Provider, death: Option<(Point, u32)>) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_charge-service"));
        command
            .env("DATABASE_URL", scene.database.url())
            .env("KAFKA_BROKERS", scene.broker.bootstrap())
            .env("KAFKA_SECURITY_PROTOCOL", "PLAINTEXT")
            .env("FACTUM_SERVICE", "test")
            .env("FACTUM_PROFILE", "development")
            .env("FACTUM_CALL_PAYMENTS_URL", provider.url())
            .env("FACTUM_CALL_PAYMENTS_TIMEOUT_MS", "500")
            .env("FACTUM_CALL_PAYMENTS_CONNECT_TIMEOUT_MS", "500")
            .env("FACTUM_CALL_PAYMENTS_CONCURRENCY", "32")
            .env("KAFKA_CONSUMER_SESSION_TIMEOUT_MS", "5000")
            .env("KAFKA_CONSUMER_HEARTBEAT_INTERVAL_MS", "300")
            .stdin(Stdio::null());
        if let Some((point, passing)) = death {
            command.env("FAULT_POINT", format!("{point} kill {passing}"));
        }
        Process(command.spawn().expect("the service's binary starts"))
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().expect("it is ours")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended before.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_charges_under_faults_and_kills_are_each_charged_once() {
    let charges: u64 = std::env::var("FACTUM_TEST_CHARGES").map_or(10_000, |text| {
        text.parse().expect("FACTUM_TEST_CHARGES is a number")
    });
    let scene = Scene::new::<Posted>(On::Embedded, PARTITIONS as u32).await;
    let provider = Provider::start(bad_day).await;

    // Each life has new events to handle and calls to send, and ends at its point.
    let lives = DEATHS.len() as u64 + 1;
    let mut produced = 0;
    for life in 0..lives {
        let until = charges * (life + 1) / lives;
        let events: Vec<Posted> = (produced + 1..=until)
            .map(|seq| Posted::entry(&format!("a{}", seq % 100), seq, ""))
            .collect();
        let (first, second) = events.split_at(events.len() / 2);
        scene.produce(0, first).await;
        scene.produce(1, second).await;
        produced = until;
        let Some(death) = DEATHS.get(life as usize) else {
            break;
        };
        let mut process = Process::start(&scene, &provider, Some(*death));
        eventually(LONG, &format!("death at {}", death.0), async || {
            process.ended().is_some()
        })
        .await;
        let status = process.ended().expect("it has ended");
        assert_eq!(
            status.signal(),
            Some(9),
            "it died at {}, not so: {status}",
            death.0
        );
    }

    // Two lives at once do the rest.
    let two_lives = || [(); 2].map(|()| Process::start(&scene, &provider, None));
    let lives = two_lives();
    let refused = (1..=charges).filter(|seq| is_refused(*seq)).count() as i64;
    let never_answered = (1..=charges).filter(|seq| is_never_answered(*seq)).count() as i64;
    let in_state = async |sql| scene.count(sql).await;
    let done = charges as i64 - refused - never_answered;
    eventually(
        LONG,
        "every call but the hopeless ones to be done",
        async || {
            in_state("SELECT count(*) FROM outbound_call WHERE state = 'done'").await == done
                && in_state("SELECT count(*) FROM outbound_call WHERE state = 'set_aside'").await
                    == refused
        },
    )
    .await;
    // A day later: what was never answered is in doubt, and the provider would charge it again. Nobody sends while the
    // day goes by: such a call would find its key forgotten, and not yet expired.
    drop(lives);
    provider.forget_keys();
    scene.execute("UPDATE outbound_call SET key_expires_at = clock_timestamp() - interval '1 second' WHERE state = 'pending'").await;
    let lives = two_lives();
    eventually(LONG, "calls in doubt", async || {
        in_state("SELECT count(*) FROM outbound_call WHERE state = 'unknown'").await
            == never_answered
    })
    .await;
    drop(lives);

    assert_eq!(
        in_state("SELECT count(*) FROM outbound_call").await,
        charges as i64,
        "none forgotten"
    );
    assert_eq!(
        in_state("SELECT count(DISTINCT event_id) FROM effect WHERE consumer = 'answers'").await,
        done,
        "each response handled"
    );
    assert_eq!(
        in_state("SELECT count(*) FROM effect WHERE consumer = 'answers'").await,
        done,
        "once"
    );
    let mut book: HashMap<String, u32> = HashMap::new();
    for body in provider.book() {
        *book.entry(body).or_default() += 1;
    }
    for seq in 1..=charges {
        let body = format!(r#"{{"account":"a{}","seq":{seq}}}"#, seq % 100);
        let times = book.remove(&body).unwrap_or(0);
        assert_eq!(times, u32::from(!is_refused(seq)), "charges of {body}");
    }
    assert!(book.is_empty(), "nothing else was charged");
}
