//! One measurement: a row's operation in one placement, as it travels from rank 0 to the report and
//! into JSON.

use serde::{Deserialize, Deserializer, Serialize};

/// The mode of a row whose time is the clock's.
pub const SIMULATED: &str = "simulated";

/// The mode of a row whose time is the cost model's.
pub const MODELLED: &str = "modelled";

/// How a call runs, or several one after the other do: then names are joined by a `+`, and what is
/// of one call only is 0.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Course {
    pub transport: String,
    pub algorithm: String,
    /// In which order it reduces, where that makes a difference.
    #[serde(default)]
    pub order: String,
    #[serde(default)]
    pub channels: usize,
    #[serde(default)]
    pub chunks: usize,
    #[serde(default)]
    pub slices: usize,
    #[serde(default)]
    pub slice_bytes: usize,
    #[serde(default = "unknown", deserialize_with = "or_unknown")]
    pub predicted_us: f64,
    /// What would have run in shared buffers, in words; empty where it did, or there is nothing.
    #[serde(default)]
    pub mapped: String,
}

/// What a rank tells the report.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// What went wrong, and where.
    Failed(String),
    /// An element that is not what it has to be.
    Wrong(String),
    /// The first cell for which there was no time.
    LeftOutFrom(usize),
    /// Of the row that comes next.
    Bucket(Bucket),
    Row(Box<Row>),
}

/// One all-reduce of a step.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Bucket {
    pub bytes: usize,
    pub count: usize,
    #[serde(flatten)]
    pub course: Course,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Row {
    pub op: String,
    pub bytes: usize,
    pub count: usize,
    #[serde(rename = "type")]
    pub data_type: String,
    pub redop: String,
    pub root: Option<usize>,
    pub ranks: usize,
    pub mode: String,
    pub in_place: bool,
    /// The median.
    pub time_us: f64,
    #[serde(default = "unknown", deserialize_with = "or_unknown")]
    pub min_us: f64,
    #[serde(default = "unknown", deserialize_with = "or_unknown")]
    pub p99_us: f64,
    #[serde(default = "unknown", deserialize_with = "or_unknown")]
    pub algbw: f64,
    #[serde(default = "unknown", deserialize_with = "or_unknown")]
    pub busbw: f64,
    /// Per cent of what the machine's memory allows; NaN where that was not measured.
    #[serde(rename = "mem_percent", default = "unknown", deserialize_with = "or_unknown")]
    pub mem: f64,
    /// Elements that were wrong over all iterations; `None`: not checked.
    pub wrong: Option<usize>,
    #[serde(default)]
    pub iterations: usize,
    /// Whether the buffers were; `None` where the report is older than this field.
    pub registered: Option<bool>,
    #[serde(flatten)]
    pub course: Course,
    /// Of a step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub buckets: Vec<Bucket>,
}

/// What a report has not, as JSON has no NaN.
fn unknown() -> f64 {
    f64::NAN
}

fn or_unknown<'de, D: Deserializer<'de>>(value: D) -> Result<f64, D::Error> {
    Option::deserialize(value).map(|number| number.unwrap_or(f64::NAN))
}

impl Row {
    /// What makes two rows the same measurement in two reports.
    pub fn key(&self) -> String {
        let place = if self.in_place { "in place" } else { "out of place" };
        let root = self.root.map_or(String::new(), |root| format!(" root {root}"));
        format!(
            "{} {} B {} {}{root} {} {} {place}",
            self.op, self.bytes, self.data_type, self.redop, self.ranks, self.mode
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_survives_json() {
        let course =
            Course { predicted_us: 3.25, mapped: "ring".into(), chunks: 2, ..Course::default() };
        let row = Row {
            op: "reduce".into(),
            bytes: 4096,
            root: Some(1),
            mem: 12.5,
            in_place: true,
            registered: Some(true),
            buckets: vec![Bucket { bytes: 4096, count: 1024, course: course.clone() }],
            course,
            ..Row::default()
        };
        let text = serde_json::to_string(&row).unwrap();
        assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), row);
    }

    #[test]
    fn an_older_row_lacks_fields() {
        let text = r#"{"op": "reduce", "bytes": 8, "count": 2, "type": "float", "redop": "sum",
            "root": null, "ranks": 2, "mode": "threads", "in_place": false, "time_us": 3,
            "busbw": null, "wrong": 0, "transport": "shm/slots", "algorithm": "ring"}"#;
        let row: Row = serde_json::from_str(text).unwrap();
        assert!(row.busbw.is_nan() && row.min_us.is_nan() && row.course.predicted_us.is_nan());
        assert_eq!((row.wrong, row.registered, row.course.slices), (Some(0), None, 0));
        assert!(serde_json::from_str::<Row>(&text.replace("time_us", "time")).is_err());
    }
}
