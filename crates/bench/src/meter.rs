//! CPU time of the servers and of the benchmark during a measurement, and latency percentiles.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;
use terminal::Stop;

use super::report::tenths;
use super::servers::Servers;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cpu {
    pub(crate) servers: Option<Duration>,
    pub(crate) client: Option<Duration>,
}

/// CPU time of the servers, and of this process.
pub(crate) struct Meter {
    servers: Servers,
    client: Servers,
    before: Cpu,
}

impl Meter {
    pub(crate) fn begin(servers: Servers) -> Result<Self, Stop> {
        let client = Servers::of(&[std::process::id()], None)?;
        let before = Cpu { servers: servers.cpu_time()?, client: client.cpu_time()? };
        Ok(Self { servers, client, before })
    }

    /// CPU time since the start of the measurement.
    pub(crate) fn used(&self) -> Result<Cpu, Stop> {
        let since = |before: Option<Duration>, now: Option<Duration>| Some(now?.saturating_sub(before?));
        Ok(Cpu {
            servers: since(self.before.servers, self.servers.cpu_time()?),
            client: since(self.before.client, self.client.cpu_time()?),
        })
    }
}

/// Latency percentiles of operations, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Latencies {
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
}

impl Latencies {
    /// Percentiles of a histogram with this number of units per microsecond.
    pub(crate) fn of(histogram: &Histogram<u64>, a_microsecond: f64) -> Self {
        let quantile = |quantile| tenths(histogram.value_at_quantile(quantile) as f64 / a_microsecond);
        Self {
            mean_us: tenths(histogram.mean() / a_microsecond),
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            max_us: tenths(histogram.max() as f64 / a_microsecond),
        }
    }
}

/// CPU time per operation, in microseconds.
pub(crate) fn per_operation(cpu: Option<Duration>, count: u64) -> Option<f64> {
    cpu.filter(|_| count > 0).map(|cpu| tenths(cpu.as_secs_f64() * 1e6 / count as f64))
}
