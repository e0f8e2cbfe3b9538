//! The series of back ends in the metrics.

use super::app::{LbApp, Row, Service, Wish};
use super::monitor::Monitor;
use weir_app::{Sample, SampleValue};

/// The maximum number of back ends with their own series in the metrics.
const SERIES_MAX: usize = 4096;

impl LbApp {
    /// Returns the series of all back ends, or of the first ones if there are too many.
    pub(super) fn series(&self) -> Vec<Sample> {
        let rows =
            self.services.iter().flat_map(|service| service.rows.iter().map(move |row| (service, row)));
        rows.take(SERIES_MAX).flat_map(|(service, row)| self.samples_of(service, row)).collect()
    }

    /// The series of a back end.
    fn samples_of(&self, service: &Service, row: &Row) -> Vec<Sample> {
        use SampleValue::{Count, Gauge};
        let (standing, monitor) = self.standing(row);
        let labels = vec![("service", service.name.clone()), ("back_end", row.name.clone())];
        let one = |(name, help, value)| Sample { name, help, labels: labels.clone(), value };
        let weight = f64::from(row.now().unwrap_or(row.full)) / f64::from(service.scale);
        let up = f64::from(u8::from(standing.is_up()));
        let kept = f64::from(u8::from(matches!(row.wish, Wish::Drain | Wish::Maintain)));
        let mut all = vec![
            one(("backend_up", "1 if the back end is up, as far as known", Gauge(up))),
            one((
                "backend_withheld",
                "1 if an operator drained the back end or put it into maintenance",
                Gauge(kept),
            )),
            one(("backend_weight", "The current weight of the back end", Gauge(weight))),
        ];
        if let Some(counts) = monitor.map(Monitor::counts) {
            all.extend(
                [
                    ("backend_checks_passed", "Successful checks of the back end", Count(counts.passed)),
                    ("backend_checks_failed", "Failed checks of the back end", Count(counts.failed)),
                    ("backend_changes", "Times that the back end went up or down", Count(counts.changes)),
                ]
                .map(one),
            );
        }
        all
    }
}
