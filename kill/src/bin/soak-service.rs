//! A relay or a consumer of the soak; see `factum_kill::soak::order`.

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
    factum_kill::soak::order::service()?.run().await?;
    Ok(())
}
