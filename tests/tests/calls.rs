//! Calls to another system: decided in the handler's transaction, sent outside of it, taken once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use factum::sqlx::{self, Connection as _};
use factum::{
    Answer, BatchHandler, Call, CallEndpoint, Calls, Consumer, DirectClient, Envelope, Event as _,
    Handler, HandlerError, OutboundCallError, ResponseHandler, Retry, Service, Tx,
};
use factum_testing::eventually;
use factum_tests::provider::{Behaviour, Provider, Seen};
use factum_tests::{
    Entry as _, LIMIT, On, Recorder, Running, Scene, effects_of, entries, entry_on_topic,
};

entry_on_topic!(ordered, "t.calls");
use ordered::Posted;

const CONSUMER: &str = "test-calls";

/// What is posted for an event.
fn charge(event: &Envelope<Posted>) -> serde_json::Value {
    serde_json::json!({"account": event.account(), "seq": event.seq()})
}

/// Calls the provider for each event, as its note says.
#[derive(Clone)]
struct Charging;

impl Handler<Posted> for Charging {
    async fn handle(&self, event: &Envelope<Posted>, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
        let call = || Call::post("payments", "/v1/charges?a=b").json(&charge(event));
        match event.note() {
            "order" => tx.call(call()?.order_by_key()).await?,
            "quoted" => tx.call(call()?.quoted_key()).await?,
            "steps" => {
                tx.call(call()?.step("authorize")).await?;
                tx.call(call()?.step("capture").header("x-shop", "a"))
                    .await?;
            }
            "permanent" => {
                tx.call(call()?).await?;
                return Err(HandlerError::permanent("after the call was written"));
            }
            _ => tx.call(call()?).await?,
        }
        sqlx::query(
            "INSERT INTO effect (consumer, event_id, account, seq) VALUES ($1, $2, $3, $4)",
        )
        .bind(CONSUMER)
        .bind(event.id().as_uuid())
        .bind(event.account())
        .bind(event.seq() as i64)
        .execute(tx.conn())
        .await?;
        Ok(())
    }
}

/// A service that charges, with these changes to its settings.
fn start(scene: &Scene, provider: &Provider, extra: &[(&str, &str)], calls: Calls) -> Running {
    let consumer = Consumer::named(CONSUMER).handler::<Posted>(Charging).retry(
        Retry::pause_partition()
            .attempts(2)
            .first_delay(Duration::from_millis(1)),
    );
    start_with(scene, provider, extra, calls, consumer)
}

fn start_with(
    scene: &Scene,
    provider: &Provider,
    extra: &[(&str, &str)],
    calls: Calls,
    consumer: Consumer,
) -> Running {
    let url = provider.url();
    let mut vars = vec![
        ("FACTUM_CALL_PAYMENTS_URL", url.as_str()),
        ("FACTUM_CALL_PAYMENTS_AUTHORIZATION", "Bearer canary"),
        ("FACTUM_CALL_PAYMENTS_TIMEOUT_MS", "1000"),
        ("FACTUM_CALL_PAYMENTS_CONNECT_TIMEOUT_MS", "1000"),
    ];
    vars.extend_from_slice(extra);
    Running::start(
        Service::builder(scene.config(&vars))
            .consumer(consumer)
            .calls(calls),
    )
}

fn payments() -> Calls {
    Calls::new().endpoint("payments")
}

async fn calls_in(scene: &Scene, state: &'static str) -> i64 {
    let mut connection = scene.database.connect().await;
    let count = sqlx::query_scalar("SELECT count(*) FROM outbound_call WHERE state = $1")
        .bind(state)
        .fetch_one(&mut connection)
        .await
        .expect("a count");
    connection
        .close()
        .await
        .expect("a connection can be closed");
    count
}

async fn await_calls(scene: &Scene, state: &'static str, count: i64) {
    eventually(LIMIT, &format!("{count} calls {state}"), async || {
        calls_in(scene, state).await == count
    })
    .await;
}

fn always(behaviour: Behaviour) -> impl Fn(&Seen) -> Behaviour + Send + Sync + 'static {
    move |_| behaviour
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_idem_4_the_key_on_the_wire_is_the_event_s_id() {
    let scene = Scene::new::<Posted>(On::Embedded, 1).await;
    let provider = Provider::start(always(Behaviour::Answer)).await;
    let notes = ["", "steps", "quoted"];
    let events: Vec<Posted> = notes
        .iter()
        .zip(1..)
        .map(|(note, seq)| Posted::entry("a", seq, note))
        .collect();
    let ids = scene.produce(0, &events).await;
    let service = start(&scene, &provider, &[], payments());
    await_calls(&scene, "done", 4).await;
    service.stop().await;

    let mut keys: Vec<String> = provider.seen().into_iter().map(|seen| seen.key).collect();
    keys.sort();
    let mut expected = [
        ids[0].to_string(),
        format!("{}/authorize", ids[1]),
        format!("{}/capture", ids[1]),
        format!("\"{}\"", ids[2]),
    ];
    expected.sort();
    assert_eq!(keys, expected);
    let first = provider
        .seen()
        .into_iter()
        .find(|seen| seen.key == ids[0].to_string())
        .expect("seen");
    assert_eq!(first.line, "POST /v1/charges?a=b");
    assert_eq!(first.body, br#"{"account":"a","seq":1}"#);
    assert_eq!(first.headers["authorization"], "Bearer canary");
    assert_eq!(first.headers["content-type"], "application/json");
    let capture = provider
        .seen()
        .into_iter()
        .find(|seen| seen.key.ends_with("/capture"))
        .expect("seen");
    assert_eq!(capture.headers["x-shop"], "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_fails_calls_nobody() {
    let scene = Scene::new::<Posted>(On::Embedded, 1).await;
    let provider = Provider::start(always(Behaviour::Answer)).await;
    scene
        .produce(
            0,
            &[
                Posted::entry("a", 1, "permanent"),
                Posted::entry("a", 2, ""),
            ],
        )
        .await;
    let service = start(&scene, &provider, &[], payments());
    await_calls(&scene, "done", 1).await;
    scene.await_committed(CONSUMER, Posted::TOPIC, 0, 2).await;
    service.stop().await;
    assert_eq!(provider.book(), [r#"{"account":"a","seq":2}"#]);
    assert_eq!(scene.count("SELECT count(*) FROM outbound_call").await, 1);
    assert_eq!(scene.dead_letters(CONSUMER).await, ["permanent"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_without_a_url_keeps_the_service_from_starting() {
    let scene = Scene::new::<Posted>(On::Embedded, 1).await;
    let calls = || {
        Calls::new()
            .endpoint("payments")
            .endpoint("Card_Payments")
            .endpoint("payments")
    };
    let service = Running::start(Service::builder(scene.config(&[])).calls(calls()));
    let error = service
        .ended()
        .await
        .expect_err("it doesn't start")
        .to_string();
    for part in [
        "3 problems",
        "error[CONS-X4]: the endpoint `payments` has no URL",
        "set FACTUM_CALL_PAYMENTS_URL",
        "the endpoint is declared twice",
        "the endpoint's name is not lower-case kebab",
    ] {
        assert!(error.contains(part), "{part} in {error}");
    }
}

/// Four ways in which a key is used twice.
#[tokio::test(flavor = "multi_thread")]
async fn case_13_another_body_is_set_aside_and_in_progress_and_lost_answers_charge_once() {
    let scene = Scene::new::<Posted>(On::Embedded, 1).await;
    let provider = Provider::start(|seen| {
        let seq = serde_json::from_slice::<serde_json::Value>(&seen.body).unwrap()["seq"].clone();
        match (seq.as_u64().unwrap(), seen.attempt) {
            // In progress, twice; the second time with a word on when to come.
            (1, 1) => Behaviour::Say(409, None),
            (1, 2) => Behaviour::Say(409, Some(1)),
            // Charged, and the answer is lost in three ways.
            (2, 1) => Behaviour::ChargeAndHang,
            (2, 2) => Behaviour::ChargeAndDrop,
            (2, 3) => Behaviour::ChargeAndFail,
            // Busy.
            (3, 1) => Behaviour::Say(429, Some(1)),
            (3, 2) => Behaviour::Say(503, None),
            (3, 3) => Behaviour::Drop,
            _ => Behaviour::Answer,
        }
    })
    .await;
    let ids = scene.produce(0, &entries::<Posted>("a", 4)).await;
    // The provider knows the fourth key with another body.
    provider.know(&ids[3].to_string(), b"other");
    let service = start(&scene, &provider, &[], payments());
    await_calls(&scene, "done", 3).await;
    await_calls(&scene, "set_aside", 1).await;
    service.stop().await;

    let mut book = provider.book();
    book.sort();
    let charged = |seq: u64| format!(r#"{{"account":"a","seq":{seq}}}"#);
    assert_eq!(book, [charged(1), charged(2), charged(3)]);
    let seen = provider.seen();
    for (id, requests) in ids.iter().zip([3, 4, 4, 1]) {
        let of: Vec<&Seen> = seen
            .iter()
            .filter(|seen| seen.key == id.to_string())
            .collect();
        assert_eq!(of.len(), requests, "{id}");
        assert!(
            of.iter().all(|seen| seen.body == of[0].body),
            "the same bytes"
        );
    }
    let aside = "SELECT count(*) FROM outbound_call WHERE state = 'set_aside' AND status = 422 \
                 AND convert_from(response_body, 'UTF8') = '{\"error\":\"other body\"}' AND error LIKE '422%'";
    assert_eq!(scene.count(aside).await, 1, "with its response");
}

/// The provider has charged and forgotten: sent again, the call would charge twice.
#[tokio::test(flavor = "multi_thread")]
async fn case_13_a_call_whose_key_has_expired_is_never_sent_again() {
    let scene = Scene::new::<Posted>(On::Embedded, 1).await;
    let provider = Provider::start(always(Behaviour::ChargeAndFail)).await;
    scene.produce(0, &entries::<Posted>("a", 1)).await;
    let service = start(&scene, &provider, &[], payments());
    eventually(LIMIT, "two attempts", async || provider.seen().len() >= 2).await;
    // A day later, seen from the table: the key's lifetime is over.
    scene
        .execute(
            "UPDATE outbound_call SET key_expires_at = clock_timestamp() WHERE state = 'pending'",
        )
        .await;
    await_calls(&scene, "unknown", 1).await;
    let sent = provider.seen().len();
    provider.forget_keys();
    provider.behave(always(Behaviour::Answer));
    // Calls of others go on; this one is left to a person.
    scene.produce(0, &[Posted::entry("a", 2, "")]).await;
    await_calls(&scene, "done", 1).await;
    service.stop().await;
    assert_eq!(provider.seen().len(), sent + 1);
    assert_eq!(provider.book().len(), 2, "each once");
    let lifetime = scene
        .count("SELECT extract(epoch FROM key_expires_at - first_sent_at)::bigint FROM outbound_call WHERE state = 'done'")
        .await;
    assert_eq!(
        lifetime,
        23 * 60 * 60 - 1,
        "a day without an hour and the call's own second"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_not_followed() {
    let scene = Scene::new::<Posted>(On::Embedded, 1).await;
    let provider = Provider::start(always(Behaviour::Say(307, None))).await;
    scene.produce(0, &entries::<Posted>("a", 1)).await;
    let service = start(&scene, &provider, &[], payments());
    await_calls(&scene, "set_aside", 1).await;
    service.stop().await;
    assert_eq!(provider.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn ordered_calls_of_one_key_leave_one_after_the_other() {
    let scene = Scene::new::<Posted>(On::Embedded, 1).await;
    let provider = Provider::start(|seen| match seen.attempt {
        1 | 2 => Behaviour::Say(503, None),
        _ => Behaviour::Answer,
    })
    .await;
    let events: Vec<Posted> = (1..=5)
        .flat_map(|seq| ["a", "b"].map(|account| Posted::entry(account, seq, "order")))
        .collect();
    scene.produce(0, &events).await;
    let service = start(&scene, &provider, &[], payments());
    await_calls(&scene, "done", 10).await;
    service.stop().await;
    for account in ["a", "b"] {
        let bodies: Vec<String> = provider
            .seen()
            .into_iter()
            .map(|seen| String::from_utf8(seen.body).unwrap())
            .filter(|body| body.contains(&format!("\"{account}\"")))
            .collect();
        let expected: Vec<String> = (1..=5)
            .flat_map(|seq| {
                std::iter::repeat_n(format!(r#"{{"account":"{account}","seq":{seq}}}"#), 3)
            })
            .collect();
        assert_eq!(bodies, expected);
    }
}

/// Writes an effect for a response, then does what the test wants.
#[derive(Clone, Default)]
struct Charged {
    runs: Arc<AtomicU32>,
}

impl ResponseHandler for Charged {
    async fn handle(&self, answer: &Answer, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
        let run = self.runs.fetch_add(1, Ordering::SeqCst);
        if answer.step() == "receipt" {
            return Ok(());
        }
        let body: serde_json::Value = answer.json()?;
        assert_eq!(body["charge"], "ch_1");
        assert_eq!((answer.status(), answer.endpoint()), (200, "payments"));
        assert_eq!(answer.header("content-type"), Some("application/json"));
        sqlx::query(
            "INSERT INTO effect (consumer, event_id, account, seq) VALUES ('answers', $1, $2, 0)",
        )
        .bind(answer.event_id().as_uuid())
        .bind(answer.aggregate_id())
        .execute(tx.conn())
        .await?;
        match answer.aggregate_id() {
            "twice" if run == 0 => Err(HandlerError::transient("the first time")),
            "panic" if run == 0 => panic!("a handler's panic, as the test wants it"),
            "swallow" if run == 0 => {
                sqlx::query("INSERT INTO uniq VALUES (1)")
                    .execute(tx.conn())
                    .await
                    .expect_err("a duplicate key");
                Ok(())
            }
            "never" if run == 0 => Err(HandlerError::permanent("no retry mends it")),
            "unnamed" => {
                let error = tx
                    .call(Call::post("payments", "/again"))
                    .await
                    .expect_err("the step is taken");
                assert!(
                    matches!(error, OutboundCallError::StepTaken { .. }),
                    "{error}"
                );
                Ok(())
            }
            "follow" => {
                tx.call(Call::post("payments", "/receipts").step("receipt"))
                    .await?;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_is_handled_once_in_its_effect_whatever_its_handler_does() {
    for account in ["plain", "twice", "panic", "swallow", "unnamed"] {
        let scene = Scene::new::<Posted>(On::Embedded, 1).await;
        let provider = Provider::start(always(Behaviour::Answer)).await;
        scene.produce(0, &entries::<Posted>(account, 1)).await;
        let handler = Charged::default();
        let calls =
            Calls::new().endpoint(CallEndpoint::named("payments").on_response(handler.clone()));
        let service = start(&scene, &provider, &[], calls);
        await_calls(&scene, "done", 1).await;
        service.stop().await;
        assert_eq!(scene.effects("answers").await, [format!("{account}:0")]);
        let runs = if matches!(account, "plain" | "unnamed") {
            1
        } else {
            2
        };
        assert_eq!(handler.runs.load(Ordering::SeqCst), runs, "{account}");
        assert_eq!(
            provider.seen().len(),
            1,
            "nothing is sent for a handler's failure"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_whose_handler_gives_up_is_set_aside_and_a_person_has_it_handled() {
    let scene = Scene::new::<Posted>(On::Embedded, 1).await;
    let provider = Provider::start(always(Behaviour::Answer)).await;
    scene.produce(0, &entries::<Posted>("never", 1)).await;
    let calls =
        Calls::new().endpoint(CallEndpoint::named("payments").on_response(Charged::default()));
    let service = start(&scene, &provider, &[], calls);
    await_calls(&scene, "set_aside", 1).await;
    assert_eq!(
        scene.count("SELECT count(*) FROM outbound_call WHERE status = 200 AND response_body IS NOT NULL AND error LIKE 'the response''s handler failed%'").await,
        1
    );
    assert_eq!(scene.effects("answers").await, Vec::<String>::new());
    let db = factum_tests::database_handle(scene.database.url()).await;
    let actor = factum_runtime::audit::Actor {
        name: "ana",
        via: "cli",
        reason: "the handler is mended",
    };
    let id = scene.count("SELECT id FROM outbound_call").await;
    factum_runtime::retry_call(&db, id, actor)
        .await
        .expect("it is set aside");
    await_calls(&scene, "done", 1).await;
    service.stop().await;
    assert_eq!(scene.effects("answers").await, ["never:0"]);
    assert_eq!(provider.seen().len(), 1, "it isn't sent again");
    let audited = "SELECT count(*) FROM audit WHERE actor = 'ana' AND action = 'calls retry' AND reason = 'the handler is mended'";
    assert_eq!(scene.count(audited).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_s_handler_calls_again_under_a_step_of_the_same_event() {
    let scene = Scene::new::<Posted>(On::Embedded, 1).await;
    let provider = Provider::start(always(Behaviour::Answer)).await;
    let ids = scene.produce(0, &entries::<Posted>("follow", 1)).await;
    let calls =
        Calls::new().endpoint(CallEndpoint::named("payments").on_response(Charged::default()));
    let service = start(&scene, &provider, &[], calls);
    await_calls(&scene, "done", 2).await;
    service.stop().await;
    let keys: Vec<String> = provider.seen().into_iter().map(|seen| seen.key).collect();
    assert_eq!(keys, [ids[0].to_string(), format!("{}/receipt", ids[0])]);
}

/// Tries what is refused, and says what it got.
struct Misusing;

impl BatchHandler<Posted> for Misusing {
    async fn handle(
        &self,
        events: &[Envelope<Posted>],
        tx: &mut Tx<'_>,
    ) -> Result<(), HandlerError> {
        let call = |endpoint: &str| Call::post(endpoint, "/");
        let undeclared = tx
            .call_for(&events[0], call("nowhere"))
            .await
            .expect_err("undeclared");
        assert!(
            matches!(undeclared, OutboundCallError::Undeclared { .. }),
            "{undeclared}"
        );
        if events.len() > 1 {
            let error = tx.call(call("payments")).await.expect_err("which event?");
            assert!(
                matches!(error, OutboundCallError::WhichEvent { events: 3 }),
                "{error}"
            );
        }
        let other = factum_tests::envelope(Posted::entry("other", 1, ""));
        let error = tx
            .call_for(&other, call("payments"))
            .await
            .expect_err("another event");
        assert!(matches!(error, OutboundCallError::OtherEvent), "{error}");
        for event in events {
            tx.call_for(event, call("payments")).await?;
            let taken = tx
                .call_for(event, call("payments"))
                .await
                .expect_err("the same key");
            assert!(taken.to_string().contains(".step("), "{taken}");
            let step = tx
                .call_for(event, call("payments").step("No Step"))
                .await
                .expect_err("no name");
            assert!(matches!(step, OutboundCallError::Step(_)), "{step}");
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_could_not_be_told_apart_are_refused() {
    let scene = Scene::new::<Posted>(On::Embedded, 1).await;
    let provider = Provider::start(always(Behaviour::Answer)).await;
    let ids = scene.produce(0, &entries::<Posted>("a", 3)).await;
    let consumer = Consumer::named(CONSUMER).batch_handler::<Posted>(Misusing);
    let service = start_with(&scene, &provider, &[], payments(), consumer);
    await_calls(&scene, "done", 3).await;
    service.stop().await;
    assert_eq!(scene.dead_letters(CONSUMER).await, Vec::<String>::new());
    let mut keys: Vec<String> = provider.seen().into_iter().map(|seen| seen.key).collect();
    keys.sort();
    assert_eq!(
        keys,
        ids.iter().map(ToString::to_string).collect::<Vec<_>>()
    );
}

/// Writes a call that can't be, as the event's note says, and leaves the error to `?`.
struct Mistaken;

impl Handler<Posted> for Mistaken {
    async fn handle(&self, event: &Envelope<Posted>, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
        match event.note() {
            "endpoint" => tx.call(Call::post("paymnts", "/v1/charges")).await?,
            "path" => tx.call(Call::post("payments", "//canary/x")).await?,
            "twice" => {
                tx.call(Call::post("payments", "/v1/charges")).await?;
                tx.call(Call::post("payments", "/v1/receipts")).await?;
            }
            _ => tx.call(Call::post("payments", "/v1/charges")).await?,
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_call_is_a_dead_letter_at_once_that_says_what_is_wrong_with_it() {
    let scene = Scene::new::<Posted>(On::Embedded, 1).await;
    let provider = Provider::start(always(Behaviour::Answer)).await;
    let notes = ["endpoint", "path", "twice", "good"];
    let events: Vec<Posted> = notes
        .iter()
        .map(|note| Posted::entry(note, 1, note))
        .collect();
    scene.produce(0, &events).await;
    // The default: what can be retried would be parked.
    let consumer = Consumer::named(CONSUMER).handler::<Posted>(Mistaken);
    let service = start_with(&scene, &provider, &[], payments(), consumer);
    await_calls(&scene, "done", 1).await;
    service.stop().await;
    assert_eq!(scene.dead_letters(CONSUMER).await, ["permanent"; 3]);
    for told in [
        "SELECT count(*) FROM dead_letter WHERE record_offset = 0 AND attempts = 1 AND error LIKE '%`paymnts`: the service declares no such endpoint%'",
        "SELECT count(*) FROM dead_letter WHERE record_offset = 1 AND attempts = 1 AND error LIKE '%the path isn''t one; begin with a single `/`%' AND error NOT LIKE '%canary%'",
        "SELECT count(*) FROM dead_letter WHERE record_offset = 2 AND attempts = 1 AND error LIKE '%`payments`: this event has a call without a step already%.step(%'",
    ] {
        assert_eq!(scene.count(told).await, 1, "{told}");
    }
    assert_eq!(provider.seen().len(), 1, "only the good call is sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_fails_is_left_alone_until_it_is_well() {
    let scene = Scene::new::<Posted>(On::Embedded, 1).await;
    let provider = Provider::start(always(Behaviour::Say(500, None))).await;
    scene.produce(0, &entries::<Posted>("a", 200)).await;
    let started = std::time::Instant::now();
    let service = start(
        &scene,
        &provider,
        &[("FACTUM_CALL_PAYMENTS_CONCURRENCY", "4")],
        payments(),
    );
    eventually(LIMIT, "the breaker to open", async || {
        provider.seen().len() >= 10
    })
    .await;
    scene.await_committed(CONSUMER, Posted::TOPIC, 0, 200).await;
    // Ten failures open it, and four calls were under way; a probe every five seconds is all that follows.
    let before = provider.seen().len();
    let probes = started.elapsed().as_secs() as usize / 5;
    assert!(
        before <= 14 + probes,
        "{before} requests, {probes} of them probes at most"
    );
    provider.behave(always(Behaviour::Answer));
    await_calls(&scene, "done", 200).await;
    service.stop().await;
    assert_eq!(provider.book().len(), 200);
}

/// Ten calls hang. With `tx.call` no handler waits for them.
#[tokio::test(flavor = "multi_thread")]
async fn listing_fault_08_ten_hanging_calls_stop_no_handler() {
    let scene = Scene::new::<Posted>(On::Embedded, 1).await;
    let provider = Provider::start(always(Behaviour::Hang)).await;
    scene.produce(0, &entries::<Posted>("a", 10)).await;
    let settings = [
        ("FACTUM_CALL_PAYMENTS_TIMEOUT_MS", "60000"),
        ("FACTUM_DATABASE_MAX_CONNECTIONS", "9"),
        ("FACTUM_SHUTDOWN_DEADLINE_SECONDS", "1"),
    ];
    let service = start(&scene, &provider, &settings, payments());
    eventually(LIMIT, "ten hanging calls", async || {
        provider.seen().len() == 10
    })
    .await;
    scene.produce(0, &[Posted::entry("b", 1, "")]).await;
    let mut expected = effects_of("a", 10);
    expected.push("b:1".to_owned());
    scene.await_effects(CONSUMER, &expected).await;
    assert_eq!(calls_in(&scene, "done").await, 0, "they still hang");
    service.ask_to_stop();
    service
        .ended()
        .await
        .expect_err("the calls hang beyond the shutdown's deadline");
}

/// Calls inside the transaction, through the direct client.
struct Direct {
    client: DirectClient,
    recorder: Recorder,
}

impl Handler<Posted> for Direct {
    async fn handle(&self, event: &Envelope<Posted>, tx: &mut Tx<'_>) -> Result<(), HandlerError> {
        let body = serde_json::to_vec(&charge(event)).expect("JSON");
        let response = self
            .client
            .post("/v1/charges", &event.idempotency_key(), body)
            .await?;
        assert_eq!(response.status(), 200);
        Handler::handle(&self.recorder, event, tx).await
    }
}

/// Ten handlers hang in a call inside the transaction. The client's time limit, which can't be left out, frees them.
#[tokio::test(flavor = "multi_thread")]
async fn listing_fault_08_a_direct_client_s_time_limit_frees_the_connections() {
    let scene = Scene::new::<Posted>(On::Embedded, 10).await;
    let provider = Provider::start(|seen| match seen.attempt {
        1 => Behaviour::ChargeAndHang,
        _ => Behaviour::Answer,
    })
    .await;
    let mut ids = Vec::new();
    for partition in 0..10 {
        let account = format!("a{partition}");
        ids.extend(
            scene
                .produce(partition, &[Posted::entry(&account, 1, "")])
                .await,
        );
    }
    let settings = [
        ("FACTUM_CALL_PAYMENTS_URL", provider.url()),
        ("FACTUM_CALL_PAYMENTS_TIMEOUT_MS", "500".to_owned()),
        ("FACTUM_CALL_PAYMENTS_CONNECT_TIMEOUT_MS", "500".to_owned()),
    ];
    let settings: Vec<(&str, &str)> = settings
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let config = scene.config(&settings);
    let direct = Direct {
        client: DirectClient::new(&config, "payments").expect("it has a URL"),
        recorder: Recorder::of(CONSUMER),
    };
    let consumer = Consumer::named(CONSUMER).handler::<Posted>(direct).retry(
        Retry::pause_partition()
            .attempts(20)
            .first_delay(Duration::from_millis(50)),
    );
    let service = Running::start(Service::builder(config).consumer(consumer));
    let expected: Vec<String> = (0..10).map(|partition| format!("a{partition}:1")).collect();
    scene.await_effects(CONSUMER, &expected).await;
    service.stop().await;
    let seen = provider.seen();
    for id in ids {
        let of = seen
            .iter()
            .filter(|seen| seen.key == id.to_string())
            .count();
        assert!(
            of >= 2,
            "it hung once and was asked again under the same key"
        );
    }
    assert_eq!(provider.book().len(), 10, "each charged once");
}
