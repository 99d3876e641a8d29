//! `--plot`: time and bus bandwidth against size, both on logarithmic axes, as one SVG file.

use super::row::Row;
use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use std::error::Error;
use std::ops::Range;

/// Colours that stay apart for colour-blind readers (Okabe and Ito, 2008).
const COLOURS: [(u8, u8, u8); 7] = [
    (0x00, 0x72, 0xb2),
    (0xd5, 0x5e, 0x00),
    (0x00, 0x9e, 0x73),
    (0xcc, 0x79, 0xa7),
    (0xe6, 0x9f, 0x00),
    (0x56, 0xb4, 0xe9),
    (0x44, 0x44, 0x44),
];

/// Pixels at the picture's natural size: of a panel, and of a line of the legend.
const WIDTH: u32 = 560;
const HEIGHT: u32 = 420;
const LINE: u32 = 19;

/// What titles and the rest are written in; the heights are those of lines.
const TITLE: (&str, u32) = ("sans-serif", 18);
const FONT: (&str, u32) = ("sans-serif", 15);

/// Lengths of a dash and of the gap behind it.
const DASH: (u32, u32) = (6, 4);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A size, and what is drawn above it.
type Point = (f64, f64);

struct Series {
    name: String,
    colour: RGBColor,
    dashed: bool,
    /// Its points are rings: the colours have come round.
    hollow: bool,
    points: Vec<(f64, f64, f64)>,
}

impl Series {
    /// A disc, and the ring around it.
    fn marks<P: Clone>(&self, at: P) -> [Circle<P, i32>; 2] {
        let inner = if self.hollow { WHITE } else { self.colour };
        [
            Circle::new(at.clone(), 3, inner.filled()),
            Circle::new(at, 3, self.colour.stroke_width(1)),
        ]
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
            let (red, green, blue) = COLOURS[index % COLOURS.len()];
            let colour = RGBColor(red, green, blue);
            let hollow = index / COLOURS.len() % 2 == 1;
            let dashed = row.in_place;
            all.push(Series { name, colour, dashed, hollow, points: Vec::new() });
            all.len() - 1
        });
        all[at].points.push((row.bytes as f64, row.time_us, row.busbw));
    }
    all
}

/// What an axis shows: from one power of its base to another.
fn range(values: impl Iterator<Item = f64>, base: f64) -> Range<f64> {
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for value in values {
        low = low.min(value.log(base).floor());
        high = high.max(value.log(base).ceil());
    }
    if low > high {
        return 1.0..base;
    }
    base.powf(low)..base.powf(high.max(low + 1.0))
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
    area: &Area,
    title: &str,
    all: &[Series],
    pick: fn(&(f64, f64, f64)) -> f64,
) -> Result<(), Box<dyn Error>> {
    let points = |series: &Series| -> Vec<Point> {
        let all = series.points.iter().map(|point| (point.0, pick(point)));
        all.filter(|(_, value)| *value > 0.0).collect()
    };
    let shown: Vec<Point> = all.iter().flat_map(points).collect();
    let across = range(shown.iter().map(|point| point.0), 2.0).log_scale().base(2.0);
    let down = range(shown.iter().map(|point| point.1), 10.0).log_scale();
    let mut chart = ChartBuilder::on(area)
        .caption(title, TITLE)
        .margin(12)
        .margin_right(20)
        .x_label_area_size(46)
        .y_label_area_size(66)
        .build_cartesian_2d(across, down)?;
    chart
        .configure_mesh()
        .label_style(FONT)
        .light_line_style(TRANSPARENT)
        .x_desc("size (bytes)")
        .x_labels(10)
        .x_label_formatter(&|bytes| short_size(*bytes))
        .draw()?;
    for series in all {
        let (points, style) = (points(series), series.colour.stroke_width(2));
        if series.dashed {
            let (dash, gap) = DASH;
            chart.draw_series(DashedLineSeries::new(points.clone(), dash, gap, style))?;
        } else {
            chart.draw_series(LineSeries::new(points.clone(), style))?;
        }
        chart.draw_series(points.into_iter().flat_map(|point| series.marks(point)))?;
    }
    Ok(())
}

/// A line for every series, and the caption below.
fn legend(area: &Area, all: &[Series], caption: &str) -> Result<(), Box<dyn Error>> {
    let row = |index: usize| (index as u32 * LINE + LINE / 2) as i32;
    for (index, series) in all.iter().enumerate() {
        let y = row(index);
        let (line, style) = (vec![(70, y), (104, y)], series.colour.stroke_width(2));
        let (dash, gap) = DASH;
        match series.dashed {
            true => area.draw(&DashedPathElement::new(line, dash, gap, style))?,
            false => area.draw(&PathElement::new(line, style))?,
        }
        series.marks((87, y)).iter().try_for_each(|mark| area.draw(mark))?;
        area.draw(&Text::new(series.name.clone(), (114, y - 7), FONT))?;
    }
    let grey = ("sans-serif", 12).into_font().color(&RGBColor(0x77, 0x77, 0x77));
    area.draw(&Text::new(caption.to_string(), (70, row(all.len())), grey))?;
    Ok(())
}

fn draw(text: &mut String, all: &[Series], caption: &str) -> Result<(), Box<dyn Error>> {
    let height = HEIGHT + LINE * (all.len() as u32 + 2);
    let root = SVGBackend::with_string(text, (2 * WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let (panels, below) = root.split_vertically(HEIGHT);
    let (left, right) = panels.split_horizontally(WIDTH);
    panel(&left, "time (us)", all, |point| point.1)?;
    panel(&right, "bus bandwidth (GB/s)", all, |point| point.2)?;
    legend(&below, all, caption)?;
    root.present()?;
    Ok(())
}

pub fn svg(rows: &[Row], caption: &str) -> String {
    let mut text = String::new();
    draw(&mut text, &series(rows), caption).expect("a text takes every picture");
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
        assert!(text.contains("a &lt; b") && text.trim_end().ends_with("</svg>"), "{text}");
        let circles: Vec<&str> = text.lines().filter(|line| line.starts_with("<circle")).collect();
        // A disc and a ring for three points in two panels, and for two lines in the legend.
        assert_eq!(circles.len(), 2 * (2 * 3 + 2), "{text}");
        for circle in &circles[..2 * 2 * 3] {
            let number = |name: &str| -> u32 {
                let rest = &circle[circle.find(name).unwrap() + name.len() + 2..];
                rest[..rest.find('"').unwrap()].parse().unwrap()
            };
            let (x, y) = (number("cx"), number("cy"));
            assert!((0..=2 * WIDTH).contains(&x) && (0..=HEIGHT).contains(&y), "{circle}");
        }
    }

    #[test]
    fn there_is_a_picture_of_nothing() {
        assert!(svg(&[], "nothing").contains("bus bandwidth"));
    }
}
