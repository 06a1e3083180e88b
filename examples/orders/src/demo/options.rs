//! The demo's command line.

use clap::Parser;

/// Most orders on the embedded broker. It keeps 5 MiB in a partition, and 32 partitions are enough
/// connections for a small machine.
pub const MOST_ORDERS_EMBEDDED: u64 = 100_000;

/// Most orders on a given broker: the checker holds every record in memory.
pub const MOST_ORDERS: u64 = 200_000;

/// Runs the example's services, tries to break them, and checks what they have written.
///
/// Orders are placed; the order service confirms them, billing writes invoices, the mailer writes
/// mails. Meanwhile the demo sends records a second time, sends records that can't be read, and kills
/// all three services with SIGKILL again and again. In the end each confirmed order must have one
/// invoice and each invoice one mail, in order; whatever could not be handled must be set aside.
///
/// The exit code is 0 when nothing is wrong, 1 on any anomaly or failure, 2 for a wrong option, 130
/// after Ctrl-C.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "orders-demo",
    after_help = "\
Environment:
  FACTUM_DEMO_DATABASE_URL  a PostgreSQL instead of a private one
  FACTUM_DEMO_BROKERS       a Kafka instead of the embedded broker: host:port, separated by commas

Example:
  orders-demo --orders 2000 --seed 7"
)]
pub struct Options {
    /// How many orders are placed
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=MOST_ORDERS))]
    pub orders: u64,

    /// Decides what is ordered, which records are repeated and when whom is killed [default: random]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// End the output with one JSON object on one line
    #[arg(long)]
    pub json: bool,

    /// Keep the database that the run has made on a given server
    #[arg(long)]
    pub keep: bool,

    /// A PostgreSQL to use instead of a private one: the URL of a database whose user may create
    /// databases. The run makes a database of its own there, and drops it at the end.
    #[arg(skip = std::env::var("FACTUM_DEMO_DATABASE_URL").ok().filter(|url| !url.is_empty()))]
    pub database_url: Option<String>,

    /// Kafka brokers to use instead of the embedded one: host:port, separated by commas.
    #[arg(skip = std::env::var("FACTUM_DEMO_BROKERS").ok().filter(|list| !list.is_empty()))]
    pub brokers: Option<String>,
}

impl Options {
    /// What clap can't see: a limit that depends on another setting.
    ///
    /// # Errors
    ///
    /// A text for the user.
    pub fn check(&self) -> Result<(), String> {
        if self.brokers.is_none() && self.orders > MOST_ORDERS_EMBEDDED {
            return Err(format!(
                "--orders {} is more than the embedded broker can hold, which is {MOST_ORDERS_EMBEDDED}. \
                 Place fewer, or name a real Kafka in FACTUM_DEMO_BROKERS.",
                self.orders
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Options, clap::Error> {
        Options::try_parse_from([&["orders-demo"], args].concat())
    }

    #[test]
    fn absurd_numbers_of_orders_are_refused() {
        for number in ["0", "-1", "200001", "many", "99999999999999999999", ""] {
            let error = parsed(&["--orders", number]).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{number}");
        }
        assert_eq!(parsed(&[]).unwrap().orders, 10_000);
    }

    #[test]
    fn the_embedded_broker_has_a_limit_of_its_own() {
        let mut options = parsed(&["--orders", "100001"]).unwrap();
        options.brokers = None;
        assert!(options.check().unwrap_err().contains("FACTUM_DEMO_BROKERS"));
        options.brokers = Some("127.0.0.1:9092".to_owned());
        assert_eq!(options.check(), Ok(()));
    }
}
