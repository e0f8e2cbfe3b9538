//! Plots as SVG files: lines over numbers, or groups of bars over names. Readable on light and dark
//! backgrounds.

use anyhow::{Context, Result};
use std::fmt::Write;
use std::path::Path;

/// Size of the image and of its margins (left, right, top, bottom), in pixels.
const SIZE: (f64, f64) = (720.0, 420.0);
const MARGIN: (f64, f64, f64, f64) = (62.0, 190.0, 40.0, 64.0);

/// A palette that colour-blind readers can tell apart (Okabe and Ito).
const COLOURS: [&str; 9] =
    ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#8a7a00", "#7f7f7f", "#6a3d9a"];

/// Tick lines per axis.
const TICKS: usize = 6;

/// A named series of values, over numbers or over bar positions.
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Position and value.
    pub points: Vec<(f64, f64)>,
    /// Belongs to another system: drawn with a dashed line or a pale bar.
    pub is_other: bool,
}

/// A plot.
pub struct Plot {
    /// Its title.
    pub title: String,
    /// The names of its axes, with units.
    pub axes: (&'static str, &'static str),
    /// Labels of the bar positions; empty for lines.
    pub bars: Vec<String>,
    /// The series to draw.
    pub series: Vec<Series>,
}

impl Plot {
    /// Writes the plot to `NAME.svg` in a directory.
    pub fn save(&self, directory: &Path, name: &str) -> Result<()> {
        let file = directory.join(format!("{name}.svg"));
        std::fs::write(&file, self.svg()).with_context(|| format!("{} cannot be written", file.display()))
    }

    /// The plot as SVG.
    pub fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let largest = points().map(|point| point.1).fold(0.0, f64::max);
        let step = round_step(largest / TICKS as f64);
        let frame = Frame {
            from: if self.bars.is_empty() { points().map(|p| p.0).fold(f64::MAX, f64::min) } else { -0.5 },
            to: match self.bars.len() {
                0 => points().map(|p| p.0).fold(f64::MIN, f64::max),
                bars => bars as f64 - 0.5,
            },
            top: (largest / step).ceil().max(1.0) * step,
        };
        let (width, height) = SIZE;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <style>text{{fill:#222}}.axis{{stroke:#999;fill:none}}.grid{{stroke:#9996;fill:none}}\
             @media(prefers-color-scheme:dark){{text{{fill:#ddd}}}}</style>\n"
        );
        text(&mut svg, (MARGIN.0, 22.0), "start", &self.title);
        self.draw_axes(&mut svg, &frame, step);
        for number in 0..self.series.len() {
            self.draw_series(&mut svg, &frame, number);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn draw_axes(&self, svg: &mut String, frame: &Frame, step: f64) {
        let (left, right) = (MARGIN.0, SIZE.0 - MARGIN.1);
        for tick in 0..=(frame.top / step).round() as usize {
            let value = tick as f64 * step;
            let y = frame.y(value);
            line(svg, "grid", (left, y), (right, y));
            text(svg, (left - 6.0, y + 4.0), "end", &short(value));
        }
        line(svg, "axis", (left, frame.y(0.0)), (right, frame.y(0.0)));
        let below = frame.y(0.0) + 18.0;
        for (at, name) in self.bars.iter().enumerate() {
            let x = frame.x(at as f64);
            let _ = writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{below:.1}\" text-anchor=\"end\" \
                 transform=\"rotate(-24 {x:.1} {below:.1})\">{}</text>",
                escaped(name)
            );
        }
        if self.bars.is_empty() {
            let mut places: Vec<f64> =
                self.series.iter().flat_map(|series| series.points.iter().map(|point| point.0)).collect();
            places.sort_by(f64::total_cmp);
            places.dedup();
            places.iter().for_each(|place| text(svg, (frame.x(*place), below), "middle", &short(*place)));
        }
        text(svg, (f64::midpoint(left, right), SIZE.1 - 8.0), "middle", self.axes.0);
        text(svg, (8.0, MARGIN.2 - 6.0), "start", self.axes.1);
    }

    fn draw_series(&self, svg: &mut String, frame: &Frame, number: usize) {
        let series = &self.series[number];
        let colour = COLOURS[number % COLOURS.len()];
        let (opacity, dash) = if series.is_other { ("0.45", "6 4") } else { ("1", "none") };
        if self.bars.is_empty() {
            let mut path = String::new();
            for (at, (x, y)) in series.points.iter().map(|(x, y)| (frame.x(*x), frame.y(*y))).enumerate() {
                let _ = write!(path, "{}{x:.1} {y:.1}", if at == 0 { "M" } else { "L" });
                let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
            }
            let _ = writeln!(
                svg,
                "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" \
                 stroke-dasharray=\"{dash}\"/>"
            );
        }
        let count = self.series.len() as f64;
        for (at, value) in series.points.iter().filter(|_| !self.bars.is_empty()) {
            let width = 0.84 / count;
            let x = frame.x(at - 0.42 + number as f64 * width);
            let (y, base) = (frame.y(*value), frame.y(0.0));
            let (w, h) = (frame.x(width) - frame.x(0.0), base - y);
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" fill=\"{colour}\" \
                 opacity=\"{opacity}\"><title>{}: {}</title></rect>",
                escaped(&series.name),
                short(*value)
            );
        }
        let (x, y) = (SIZE.0 - MARGIN.1 + 14.0, MARGIN.2 + 20.0 * number as f64);
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\" fill=\"{colour}\" opacity=\"{opacity}\"/>"
        );
        text(svg, (x + 18.0, y + 10.0), "start", &series.name);
    }
}

/// The range of values that the area between the margins shows.
struct Frame {
    from: f64,
    to: f64,
    top: f64,
}

impl Frame {
    fn x(&self, place: f64) -> f64 {
        let width = SIZE.0 - MARGIN.0 - MARGIN.1;
        MARGIN.0 + (place - self.from) / (self.to - self.from).max(f64::MIN_POSITIVE) * width
    }

    fn y(&self, value: f64) -> f64 {
        let height = SIZE.1 - MARGIN.2 - MARGIN.3;
        SIZE.1 - MARGIN.3 - value / self.top * height
    }
}

/// Rounds up to 1, 2 or 5 times a power of ten.
fn round_step(step: f64) -> f64 {
    let step = if step > 0.0 { step } else { 1.0 };
    let power = 10_f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0].into_iter().map(|first| first * power).find(|one| *one >= step).unwrap_or(10.0 * power)
}

fn short(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, content: &str) {
    let content = escaped(content);
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>");
}

fn line(svg: &mut String, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    let _ = writeln!(svg, "<path class=\"{class}\" d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\"/>");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(bars: &[&str]) -> Plot {
        let series = |name: &str, points: &[(f64, f64)]| Series {
            name: name.to_string(),
            points: points.to_vec(),
            is_other: name.contains("paper"),
        };
        Plot {
            title: "costs & <gains>".to_string(),
            axes: ("skew", "ns"),
            bars: bars.iter().map(ToString::to_string).collect(),
            series: vec![series("ours", &[(0.0, 10.0), (1.0, 47.0)]), series("paper", &[(0.0, 30.0)])],
        }
    }

    #[test]
    fn lines_and_bars_lie_inside_the_picture_at_their_values() {
        let lines = plot(&[]).svg();
        assert!(lines.contains("costs &amp; &lt;gains>"), "names are escaped: {lines}");
        // Values 0 to 50: 47 lies 6 % below the top margin.
        let y = 40.0 + (420.0 - 40.0 - 64.0) * 3.0 / 50.0;
        assert!(lines.contains(&format!("cy=\"{y:.1}\"")), "{lines}");
        assert_eq!(lines.matches("<circle").count(), 3);
        let bars = plot(&["a", "b"]).svg();
        assert_eq!(bars.matches("<title>").count(), 3);
        assert!(bars.contains("<title>ours: 47</title>"));
    }

    #[test]
    fn steps_are_round() {
        assert_eq!([0.9, 7.8, 20.0, 0.0].map(round_step), [1.0, 10.0, 20.0, 1.0]);
    }
}
