//! What the endpoint answers to whom, without a server.

use super::*;

const TOKEN: &str = "cAnArY-0123456789";

fn health(metrics: Option<MetricsText>) -> Health {
    Health {
        settings: HealthSettings::new(([127, 0, 0, 1], 0).into(), TOKEN.into()),
        vitals: Arc::default(),
        has_relay: true,
        ending: CancellationToken::new(),
        metrics,
    }
}

fn get(path: &str, authorization: &[&str]) -> Request<()> {
    let mut request = Request::builder().uri(path);
    for value in authorization {
        request = request.header(AUTHORIZATION, *value);
    }
    request.body(()).expect("a request")
}

fn status(health: &Health, request: &Request<()>) -> u16 {
    health.respond(request).status().as_u16()
}

#[test]
fn only_the_whole_token_opens_anything() {
    let health = health(Some(MetricsText(Arc::new(|| "counted 1\n".to_owned()))));
    let right = format!("Bearer {TOKEN}");
    for path in ["/live", "/metrics"] {
        assert_eq!(status(&health, &get(path, &[&right])), 200);
        // The scheme's case is free; everything else isn't.
        assert_eq!(
            status(&health, &get(path, &[&format!("bearer {TOKEN}")])),
            200
        );
        let longer = format!("{right}0");
        let other = format!("Bearer {}", TOKEN.to_lowercase());
        for wrong in [
            &[][..],
            &[""],
            &["Bearer"],
            &["Bearer "],
            &[TOKEN],
            &["Basic cAnArY-0123456789"],
            &[&right[..right.len() - 1]],
            &[&longer],
            &[&other],
            // Two credentials are no credential.
            &[&right, &right],
        ] {
            let response = health.respond(&get(path, wrong));
            assert_eq!(response.status(), 401, "{path} {wrong:?}");
            assert_eq!(response.headers()[WWW_AUTHENTICATE], "Bearer");
        }
    }
    // Who doesn't know it doesn't learn what is there, either.
    assert_eq!(status(&health, &get("/elsewhere", &[])), 401);
    assert_eq!(status(&health, &get("/elsewhere", &[&right])), 404);
    let mut post = get("/live", &[&right]);
    *post.method_mut() = Method::POST;
    assert_eq!(status(&health, &post), 405);
}

#[test]
fn metrics_are_not_found_where_the_program_gives_none() {
    let request = get("/metrics", &[&format!("Bearer {TOKEN}")]);
    assert_eq!(status(&health(None), &request), 404);
}

#[test]
fn ready_is_what_was_heard_of_lately_and_each_part_is_told() {
    let health = health(None);
    let (ready, body) = health.readiness();
    assert!(!ready);
    assert_eq!(body["database"]["state"], "no sign of life yet");

    health.vitals.database.heard();
    health.vitals.kafka.heard();
    let (ready, body) = health.readiness();
    assert!(!ready, "the relay has not said anything");
    assert_eq!(body["database"]["ready"], true);
    assert_eq!(body["relay"]["ready"], false);

    health.vitals.relay_waits();
    let (ready, body) = health.readiness();
    assert!(ready, "{body}");
    assert_eq!(body["relay"]["state"], "waits for slots");
    health.vitals.relay_sends();
    assert_eq!(health.readiness().1["relay"]["state"], "holds slots");

    let long_ago = Instant::now().checked_sub(SIGN_LASTS + Duration::from_secs(3));
    *health.vitals.kafka.0.lock().expect("no poison") = long_ago;
    let (ready, body) = health.readiness();
    assert!(!ready);
    assert_eq!(body["kafka"]["state"], "no sign of life for 13 s");
    assert_eq!(body["database"]["ready"], true);

    health.vitals.kafka.heard();
    health.ending.cancel();
    let (ready, body) = health.readiness();
    assert!(!ready, "a service that ends wants no work");
    assert_eq!(body["service"]["state"], "ends");
}
