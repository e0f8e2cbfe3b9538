//! A row of results: the turns of all arms at one number of streams.
//!
//! A machine's speed may change from second to second because of other load on its host. Therefore the ratio
//! of two arms is not the ratio of two medians, but the median of the ratios within rounds, whose turns are a
//! fraction of a second apart.

use super::machine::BondWay;
use super::turn::{Doubt, Turn};
use serde_json::{Value, json};
use std::fmt;
use weir_lab::spread::ResultSpread;

/// Number of turns that count, whose median is the rate.
const TURNS: usize = 9;

/// Minimum number of turns; with fewer, the row is void.
const TURNS_MIN: usize = 5;

/// Names of the arms, in the order in which they take turns.
pub const ARMS: [&str; 4] = ["weir", "ovs_lb", "ovs_recirc", "ceiling"];

/// A turn of each arm that is present.
pub type Round = [Option<Turn>; 4];

/// All rounds at one number of streams.
#[derive(Clone, Debug)]
pub struct Rounds {
    way: BondWay,
    all: Vec<Round>,
}

impl Rounds {
    /// No rounds yet, of frames that take this way.
    pub fn new(way: BondWay) -> Rounds {
        Rounds { way, all: Vec::new() }
    }

    /// Adds a round.
    pub fn add(&mut self, round: Round) {
        self.all.push(round);
    }

    /// Returns true if every arm that is present has had enough turns that count.
    pub fn suffice(&self) -> bool {
        (0..ARMS.len()).all(|arm| self.turns(arm).next().is_none() || self.good(arm).count() >= TURNS)
            && !self.all.is_empty()
    }

    fn turns(&self, arm: usize) -> impl Iterator<Item = Turn> {
        self.all.iter().filter_map(move |round| round[arm])
    }

    fn good(&self, arm: usize) -> impl Iterator<Item = Turn> {
        self.turns(arm).filter(|turn| self.is_good(turn))
    }

    fn is_good(&self, turn: &Turn) -> bool {
        turn.dropped <= self.way.dropped_max() && turn.doubt.is_none()
    }

    /// The rates of turns that count; `None` if there are too few.
    fn rate(&self, arm: usize) -> Option<ResultSpread> {
        enough(self.good(arm).map(|turn| turn.mpps).collect())
    }

    /// The share dropped in those turns, or in all turns if those are too few.
    fn dropped(&self, arm: usize) -> Option<f64> {
        let shares =
            |turns: &mut dyn Iterator<Item = Turn>| turns.map(|turn| turn.dropped).collect::<Vec<f64>>();
        let of =
            if self.rate(arm).is_some() { shares(&mut self.good(arm)) } else { shares(&mut self.turns(arm)) };
        (!of.is_empty()).then(|| ResultSpread::of(of).median)
    }

    /// The ratio of one arm's rate to another's, by rounds.
    fn ratio(&self, arm: usize, other: usize) -> Option<f64> {
        let good = |turn: Option<Turn>| turn.filter(|turn| self.is_good(turn));
        let both = self.all.iter().filter_map(|round| good(round[arm]).zip(good(round[other])));
        enough(both.map(|(ours, theirs)| ours.mpps / theirs.mpps).collect()).map(|ratios| ratios.median)
    }

    /// Why an arm that has turns has no rate.
    fn void(&self, arm: usize) -> Option<Void> {
        let (turns, good) = (self.turns(arm).count(), self.good(arm).count());
        let doubted = |doubt| self.turns(arm).filter(|turn| turn.doubt == Some(doubt)).count();
        let [slow, apart, idle] = [Doubt::Slow, Doubt::Apart, Doubt::Idle].map(doubted);
        let lossy = turns - good - slow - apart - idle;
        let way = self.way;
        let void = || Void { arm: ARMS[arm], way, turns, good, slow, apart, idle, lossy };
        (turns > 0 && self.rate(arm).is_none()).then(void)
    }
}

/// Why an arm has no rate: the fates of its turns.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
struct Void {
    arm: &'static str,
    #[serde(skip)]
    way: BondWay,
    turns: usize,
    /// Turns that count, but are too few.
    good: usize,
    /// Turns whose counters took too long to read.
    slow: usize,
    /// Turns in which the sink fell behind.
    apart: usize,
    /// Turns in which nothing was forwarded.
    idle: usize,
    /// Turns whose only flaw is loss.
    lossy: usize,
}

impl fmt::Display for Void {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Void { arm, way, turns, good, slow, apart, idle, lossy } = self;
        write!(f, "{arm} is void: of {turns} turns {good} are valid, but {TURNS_MIN} are needed;")?;
        let percent = 100.0 * way.dropped_max();
        let place = if way.has_machine() { "the machine or the members" } else { "the members" };
        let reasons = [
            (lossy, format!("dropped more than {percent:.1} % at {place}")),
            (slow, "had counters that took too long to read: other programs use this core".to_string()),
            (idle, "forwarded nothing".to_string()),
            (apart, "had a sink that was behind: other programs use the second core".to_string()),
        ];
        let reasons = reasons.iter().filter(|(count, _)| **count > 0);
        let reasons: Vec<String> = reasons.map(|(count, why)| format!("{count} {why}")).collect();
        write!(f, " {}", reasons.join(", "))
    }
}

fn enough(values: Vec<f64>) -> Option<ResultSpread> {
    (values.len() >= TURNS_MIN).then(|| ResultSpread::of(values))
}

/// The rates in the talk of 2019 on lb_output: streams, Mpps by hash and recirculation, Mpps by lb_output.
/// There, two cores forward 64-byte frames from a NIC to a virtual machine and back, with less than 10 ppm of
/// loss.
const SLIDE: [(u32, f64, f64); 6] = [
    (1, 4.47, 5.73),
    (10, 4.17, 5.35),
    (1000, 3.41, 5.25),
    (10_000, 2.53, 4.57),
    (100_000, 2.33, 4.27),
    (500_000, 2.33, 4.27),
];

/// A row of results: million frames per second accepted by the two members; `None` where an arm is absent or
/// void.
#[derive(Clone, Debug)]
pub struct BondRow {
    streams: u32,
    way: BondWay,
    /// By arm, as in [`ARMS`]: million packets per second of processor time, and the share that was dropped.
    rates: [Option<ResultSpread>; 4],
    dropped: [Option<f64>; 4],
    weir_of_ovs_lb: Option<f64>,
    weir_of_ceiling: Option<f64>,
    /// Arms with too few turns that count, and the reasons.
    void: Vec<Void>,
}

impl BondRow {
    /// Computes the medians of the rounds.
    pub fn new(streams: u32, rounds: &Rounds) -> BondRow {
        BondRow {
            streams,
            way: rounds.way,
            rates: [0, 1, 2, 3].map(|arm| rounds.rate(arm)),
            dropped: [0, 1, 2, 3].map(|arm| rounds.dropped(arm)),
            weir_of_ovs_lb: rounds.ratio(0, 1),
            weir_of_ceiling: rounds.ratio(0, 3),
            void: (0..ARMS.len()).filter_map(|arm| rounds.void(arm)).collect(),
        }
    }

    /// The slide's Mpps with this number of streams, by hash and with lb_output; its frames pass a machine.
    fn slide(&self) -> Option<(f64, f64)> {
        let found = SLIDE.iter().find(|(streams, ..)| self.way.has_machine() && *streams == self.streams);
        found.map(|&(_, hash, lb)| (hash, lb))
    }

    /// The row as JSON. The last two arms have no range.
    pub fn json(&self) -> Value {
        let mut row = json!({ "streams": self.streams });
        for (arm, name) in ARMS.iter().enumerate() {
            match arm {
                0 | 1 => ResultSpread::put(self.rates[arm], name, &mut row),
                _ => row[format!("{name}_mpps")] = json!(self.median(arm)),
            }
            row[format!("{name}_dropped")] = json!(self.dropped[arm]);
        }
        row["weir_of_ovs_lb"] = json!(self.weir_of_ovs_lb);
        row["weir_of_ceiling"] = json!(self.weir_of_ceiling);
        row["void"] = json!(self.void);
        if self.way.has_machine() {
            let slide = self.slide();
            row["slide"] =
                json!(slide.map(|(hash, lb)| json!({ "ovs_recirc_mpps": hash, "ovs_lb_mpps": lb })));
        }
        row
    }

    fn median(&self, arm: usize) -> Option<f64> {
        self.rates[arm].map(|rate| rate.median)
    }

    /// The heading of a table of rows.
    pub fn heading(way: BondWay) -> String {
        let [weir, lb, recirc, ceiling] = ["weir", "OVS lb_output", "OVS hash", "ceiling"];
        let slide = if way.has_machine() { "  slide: lb_output, hash" } else { "" };
        format!(
            "{:>7}  {weir:>20}  {lb:>20}  {recirc:>8}  {ceiling:>7}  weir/ceiling  weir/OVS{slide}",
            "streams"
        )
    }

    fn rate(&self, arm: usize) -> String {
        match self.median(arm) {
            Some(rate) => format!("{rate:.2}"),
            None if self.void.iter().any(|void| void.arm == ARMS[arm]) => "void".into(),
            None => "-".into(),
        }
    }
}

impl fmt::Display for BondRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [weir, lb] = [0, 1].map(|arm| match self.rates[arm] {
            Some(ResultSpread { min, max, .. }) => format!("{} ({min:.2} - {max:.2})", self.rate(arm)),
            None => self.rate(arm),
        });
        let [recirc, ceiling] = [self.rate(2), self.rate(3)];
        write!(f, "{:>7}  {weir:>20}  {lb:>20}  {recirc:>8}  {ceiling:>7}", self.streams)?;
        let percent =
            |ratio: Option<f64>| ratio.map_or("-".into(), |ratio| format!("{:.0} %", 100.0 * ratio));
        let times = |ratio: Option<f64>| ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"));
        write!(f, "  {:>12}  {:>8}", percent(self.weir_of_ceiling), times(self.weir_of_ovs_lb))?;
        if let Some((hash, lb)) = self.slide() {
            write!(f, "  {lb:>16.2}  {hash:>4.2}")?;
        }
        for void in &self.void {
            write!(f, "\n         {void}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(turns: [(f64, f64); 3]) -> Round {
        let turn = |(mpps, dropped)| Some(Turn { mpps, dropped, doubt: None });
        [turn(turns[0]), turn(turns[1]), None, turn(turns[2])]
    }

    #[test]
    fn turns_with_loss_do_not_count_and_too_few_others_are_void() {
        let mut rounds = Rounds::new(BondWay::Direct);
        assert!(!rounds.suffice());
        for at in 0..6 {
            // weir never loses frames, lb_output always does, and the ceiling does at first.
            let dropped = if at == 0 { 0.3 } else { 0.0005 };
            rounds.add(round([
                (10.0 + f64::from(at), 0.0),
                (20.0, 0.5),
                (20.0 + 2.0 * f64::from(at), dropped),
            ]));
        }
        let row = BondRow::new(7, &rounds);
        assert_eq!([0, 1, 2, 3].map(|arm| row.median(arm)), [Some(13.0), None, None, Some(26.0)]);
        assert_eq!(row.dropped, [Some(0.0), Some(0.5), None, Some(0.0005)]);
        let json = row.json();
        let keys: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        let ovs = ["ovs_lb_mpps", "ovs_lb_mpps_min", "ovs_lb_mpps_max", "ovs_lb_dropped", "ovs_recirc_mpps"];
        assert_eq!(keys[5..10], ovs);
        assert_eq!((row.weir_of_ceiling, row.weir_of_ovs_lb), (Some(0.5), None));
        let why = "ovs_lb is void: of 6 turns 0 are valid, but 5 are needed; 6 dropped more than 0.1 % \
             at the members";
        assert_eq!(row.void.iter().map(Void::to_string).collect::<Vec<_>>(), [why]);
        assert!(row.to_string().ends_with(why), "{row}");
        assert!(!rounds.suffice());
    }

    #[test]
    fn a_turn_through_a_machine_may_lose_a_little_which_only_lowers_its_rate() {
        let [direct, through] = [BondWay::Direct, BondWay::Pvp].map(|way| {
            let mut rounds = Rounds::new(way);
            for dropped in [0.0, 0.015, 0.015, 0.015, 0.015, 0.015, 0.03] {
                rounds.add(round([(10.0, dropped), (5.0, 0.0), (20.0, 0.0)]));
            }
            BondRow::new(1000, &rounds)
        });
        assert_eq!((direct.median(0), through.median(0)), (None, Some(10.0)));
        assert_eq!((direct.weir_of_ovs_lb, through.weir_of_ovs_lb), (None, Some(2.0)));
        assert!(direct.to_string().contains("6 dropped more than 0.1 % at the members"), "{direct}");
        let mut rounds = Rounds::new(BondWay::Pvp);
        rounds.add(round([(10.0, 0.03), (5.0, 0.0), (20.0, 0.0)]));
        let void = BondRow::new(1000, &rounds).to_string();
        assert!(void.contains("1 dropped more than 2.0 % at the machine or the members"), "{void}");
    }

    #[test]
    fn the_slides_rates_are_beside_those_through_a_machine_only() {
        let row = |streams, way| BondRow::new(streams, &Rounds::new(way));
        assert_eq!(
            row(1000, BondWay::Pvp).json()["slide"],
            json!({"ovs_recirc_mpps": 3.41, "ovs_lb_mpps": 5.25})
        );
        assert!(row(1000, BondWay::Pvp).to_string().ends_with("5.25  3.41"));
        assert!(row(7, BondWay::Pvp).json()["slide"].is_null());
        assert!(row(1000, BondWay::Direct).json().get("slide").is_none());
    }

    #[test]
    fn a_void_row_says_what_became_of_its_turns() {
        let mut rounds = Rounds::new(BondWay::Direct);
        let doubts =
            [Some(Doubt::Slow), Some(Doubt::Slow), Some(Doubt::Apart), None, None, Some(Doubt::Idle)];
        for (at, doubt) in doubts.into_iter().enumerate() {
            let dropped = if at == 4 { 0.5 } else { 0.0 };
            rounds.add([Some(Turn { mpps: 1.0, dropped, doubt }), None, None, None]);
        }
        let row = BondRow::new(1, &rounds).to_string();
        for part in [
            "weir is void: of 6 turns 1 are valid",
            "1 dropped more than 0.1 %",
            "2 had counters that took too long to read",
            "1 had a sink that was behind",
            "1 forwarded nothing",
        ] {
            assert!(row.contains(part), "{row}");
        }
        assert!(!row.contains("0.00 % dropped"), "{row}");
    }
}
