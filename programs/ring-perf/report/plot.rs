//! `--plot`: time and bus bandwidth against size, both on logarithmic axes, as one SVG file.

use super::row::Row;
use std::fmt::Write;

/// Colours that stay apart for colour-blind readers (Okabe and Ito, 2008).
const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444"];

/// Sizes in the picture's units, which are pixels at its natural size.
const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 50.0;
const GAP: f64 = 90.0;

struct Series {
    name: String,
    colour: &'static str,
    dashed: bool,
    /// Its points are rings: the colours have come round.
    hollow: bool,
    points: Vec<(f64, f64, f64)>,
}

impl Series {
    fn point(&self, x: &str, y: &str) -> String {
        let fill = if self.hollow { "white" } else { self.colour };
        let stroke = self.colour;
        format!("<circle cx=\"{x}\" cy=\"{y}\" r=\"2.5\" fill=\"{fill}\" stroke=\"{stroke}\"/>")
    }
}

/// Rows that belong to one line.
fn series(rows: &[Row]) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    let mut bases: Vec<String> = Vec::new();
    for row in rows.iter().filter(|row| row.bytes > 0 && row.time_us > 0.0) {
        let root = row.root.map_or(String::new(), |root| format!(" root {root}"));
        let redop = if row.redop == "none" { String::new() } else { format!(" {}", row.redop) };
        let ranks = match &*row.mode {
            "threads" | "processes" => format!("{} {}", row.ranks, row.mode),
            mode => format!("{} ranks, {mode}", row.ranks),
        };
        let base = format!("{} {}{redop}{root}, {ranks}", row.op, row.data_type);
        let index = bases.iter().position(|known| *known == base).unwrap_or_else(|| {
            bases.push(base.clone());
            bases.len() - 1
        });
        let name = if row.in_place { format!("{base}, in place") } else { base };
        let at = all.iter().position(|series| series.name == name).unwrap_or_else(|| {
            let colour = COLOURS[index % COLOURS.len()];
            let hollow = index / COLOURS.len() % 2 == 1;
            let dashed = row.in_place;
            all.push(Series { name, colour, dashed, hollow, points: Vec::new() });
            all.len() - 1
        });
        all[at].points.push((row.bytes as f64, row.time_us, row.busbw));
    }
    all
}

/// A logarithmic axis from one power of its base to another.
struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>, base: f64) -> Axis {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| *value > 0.0) {
            low = low.min(value.log(base).floor());
            high = high.max(value.log(base).ceil());
        }
        if low > high {
            return Axis { low: 0.0, high: 1.0 };
        }
        Axis { low: low * base.log10(), high: high.max(low + 1.0) * base.log10() }
    }

    /// 0 at the low end, 1 at the high one.
    fn place(&self, value: f64) -> f64 {
        (value.log10() - self.low) / (self.high - self.low)
    }
}

fn short_size(bytes: f64) -> String {
    for (unit, name) in [(30, "G"), (20, "M"), (10, "K")] {
        let unit = f64::from(1 << unit);
        if bytes >= unit {
            return format!("{}{name}", bytes / unit);
        }
    }
    format!("{bytes}")
}

/// One of the two pictures.
fn panel(
    text: &mut String,
    title: &str,
    left: f64,
    all: &[Series],
    pick: fn(&(f64, f64, f64)) -> f64,
) {
    let x = Axis::over(all.iter().flat_map(|s| s.points.iter().map(|p| p.0)), 2.0);
    let y = Axis::over(all.iter().flat_map(|s| s.points.iter().map(pick)), 10.0);
    let across = |value: f64| left + WIDTH * x.place(value);
    let down = |value: f64| TOP + HEIGHT * (1.0 - y.place(value));
    let (bottom, right) = (TOP + HEIGHT, left + WIDTH);
    let mut out = |line: String| writeln!(text, "{line}").expect("a string takes all");
    out(format!(
        "<text x=\"{left}\" y=\"{}\" font-size=\"15\" font-weight=\"bold\">{title}</text>",
        TOP - 16.0
    ));
    let step = ((x.high - x.low) / 2f64.log10() / 9.0).ceil().max(1.0) as i32;
    let (first, last) =
        ((x.low / 2f64.log10()).round() as i32, (x.high / 2f64.log10()).round() as i32);
    for power in (first..=last).step_by(step as usize) {
        let (value, at) = (2f64.powi(power), across(2f64.powi(power)));
        out(format!(
            "<path d=\"M{at:.1} {TOP}V{bottom}\" class=\"grid\"/><text x=\"{at:.1}\" y=\"{}\" \
             text-anchor=\"middle\">{}</text>",
            bottom + 17.0,
            short_size(value)
        ));
    }
    for power in y.low.round() as i32..=y.high.round() as i32 {
        let at = down(10f64.powi(power));
        out(format!(
            "<path d=\"M{left} {at:.1}H{right}\" class=\"grid\"/><text x=\"{}\" y=\"{:.1}\" \
             text-anchor=\"end\">{}</text>",
            left - 7.0,
            at + 4.0,
            10f64.powi(power)
        ));
    }
    out(format!(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">size (bytes)</text>",
        left + WIDTH / 2.0,
        bottom + 36.0
    ));
    for series in all {
        let points: Vec<String> = series
            .points
            .iter()
            .filter(|point| pick(point) > 0.0)
            .map(|point| format!("{:.1},{:.1}", across(point.0), down(pick(point))))
            .collect();
        let dash = if series.dashed { " stroke-dasharray=\"6 4\"" } else { "" };
        out(format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{dash}/>",
            points.join(" "),
            series.colour
        ));
        for point in &points {
            let (x, y) = point.split_once(',').expect("written so");
            out(series.point(x, y));
        }
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

pub fn svg(rows: &[Row], caption: &str) -> String {
    let all = series(rows);
    let second = LEFT + WIDTH + GAP;
    let legend = TOP + HEIGHT + 62.0;
    let (width, height) = (second + WIDTH + 30.0, legend + 19.0 * (all.len() + 1) as f64 + 12.0);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\" \
         fill=\"#222\">\n<style>.grid{{stroke:#ddd;stroke-width:1;fill:none}}</style>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    panel(&mut text, "time (us)", LEFT, &all, |point| point.1);
    panel(&mut text, "bus bandwidth (GB/s)", second, &all, |point| point.2);
    for (index, series) in all.iter().enumerate() {
        let y = legend + 19.0 * index as f64;
        let dash = if series.dashed { " stroke-dasharray=\"6 4\"" } else { "" };
        writeln!(
            text,
            "<path d=\"M{LEFT} {y}h34\" stroke=\"{}\" stroke-width=\"2\"{dash}/>{}\
             <text x=\"{}\" y=\"{}\">{}</text>",
            series.colour,
            series.point(&format!("{}", LEFT + 17.0), &format!("{y}")),
            LEFT + 44.0,
            y + 4.0,
            escape(&series.name)
        )
        .expect("a string takes all");
    }
    let y = legend + 19.0 * all.len() as f64 + 10.0;
    writeln!(text, "<text x=\"{LEFT}\" y=\"{y}\" fill=\"#777\">{}</text>\n</svg>", escape(caption))
        .expect("a string takes all");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_lie_inside_their_panel() {
        let row = |bytes: usize, time_us, busbw, in_place| Row {
            op: "all_reduce".into(),
            bytes,
            time_us,
            busbw,
            in_place,
            ..Row::default()
        };
        let rows = [
            row(8, 0.2, 0.04, false),
            row(1 << 26, 9000.0, 7.5, false),
            row(8, 0.3, 0.03, true),
            row(0, 0.1, 0.0, false),
        ];
        let text = svg(&rows, "a < b");
        assert_eq!(text.matches("<polyline").count(), 4, "two panels, two lines");
        assert!(text.contains("a &lt; b") && text.ends_with("</svg>\n"));
        for circle in text.lines().filter(|line| line.starts_with("<circle")) {
            let number = |name: &str| -> f64 {
                let rest = &circle[circle.find(name).unwrap() + name.len() + 2..];
                rest[..rest.find('"').unwrap()].parse().unwrap()
            };
            let (x, y) = (number("cx"), number("cy"));
            assert!((TOP..=TOP + HEIGHT).contains(&y), "{circle}");
            assert!((LEFT..=LEFT + 2.0 * WIDTH + GAP).contains(&x), "{circle}");
        }
    }
}
