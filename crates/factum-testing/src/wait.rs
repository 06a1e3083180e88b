//! Waiting for a condition instead of sleeping.

use std::time::{Duration, Instant};

/// The pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Waits until `condition` holds, looking every 10 ms.
///
/// ```
/// use std::time::Duration;
/// use factum_testing::eventually;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let mut looks = 0;
/// eventually(Duration::from_secs(5), "three looks", async || {
///     looks += 1;
///     looks == 3
/// })
/// .await;
/// # }
/// ```
///
/// # Panics
///
/// When it doesn't hold within `limit`; the text says what was waited for. A look that hangs is cut
/// off at the limit too.
#[track_caller]
pub fn eventually(
    limit: Duration,
    what: &str,
    mut condition: impl AsyncFnMut() -> bool,
) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let start = Instant::now();
        let holds = async {
            while !condition().await {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        if tokio::time::timeout(limit, holds).await.is_err() {
            panic!(
                "{caller}: waited {:.1} s in vain for: {what}",
                start.elapsed().as_secs_f64()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    #[should_panic(expected = "in vain for: what never comes")]
    async fn a_condition_that_never_holds_ends_at_the_limit() {
        eventually(Duration::from_millis(50), "what never comes", async || {
            false
        })
        .await;
    }

    #[tokio::test]
    #[should_panic(expected = "in vain for: a look that hangs")]
    async fn a_look_that_hangs_ends_at_the_limit() {
        eventually(Duration::from_millis(50), "a look that hangs", async || {
            std::future::pending::<bool>().await
        })
        .await;
    }
}
