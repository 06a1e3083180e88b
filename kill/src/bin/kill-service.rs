//! The service that comes to harm; see `factum_kill::ledger`.

// More threads than points that can be paused at once.
#[tokio::main(flavor = "multi_thread", worker_threads = 6)]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
    factum_kill::ledger::service()?.run().await?;
    Ok(())
}
