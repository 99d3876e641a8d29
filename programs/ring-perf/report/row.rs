//! One measurement: a row's operation in one placement, as it travels from rank 0 to the report and
//! into JSON.

use super::json::{Value, object};

/// The mode of a row whose time is the clock's.
pub const SIMULATED: &str = "simulated";

/// The mode of a row whose time is the cost model's.
pub const MODELLED: &str = "modelled";

/// How a call runs, or several one after the other do: then names are joined by a `+`, and what is
/// of one call only is 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Course {
    pub transport: String,
    pub algorithm: String,
    pub channels: usize,
    pub chunks: usize,
    pub slices: usize,
    pub slice_bytes: usize,
    pub predicted_us: f64,
    /// What would have run in shared buffers, in words; empty where it did, or there is nothing.
    pub mapped: String,
}

/// One all-reduce of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bucket {
    pub bytes: usize,
    pub count: usize,
    pub course: Course,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    pub op: String,
    pub bytes: usize,
    pub count: usize,
    pub data_type: String,
    pub redop: String,
    pub root: Option<usize>,
    pub ranks: usize,
    pub mode: String,
    pub in_place: bool,
    /// The median.
    pub time_us: f64,
    pub min_us: f64,
    pub p99_us: f64,
    pub algbw: f64,
    pub busbw: f64,
    /// Per cent of what the machine's memory allows; NaN where that was not measured.
    pub mem: f64,
    /// Elements that were wrong over all iterations; `None`: not checked.
    pub wrong: Option<usize>,
    pub iterations: usize,
    /// Whether the buffers were; `None` where the report is older than this field.
    pub registered: Option<bool>,
    pub course: Course,
    /// Of a step.
    pub buckets: Vec<Bucket>,
}

impl Course {
    fn fields(&self) -> [(&'static str, Value); 8] {
        [
            ("transport", self.transport.as_str().into()),
            ("algorithm", self.algorithm.as_str().into()),
            ("channels", self.channels.into()),
            ("chunks", self.chunks.into()),
            ("slices", self.slices.into()),
            ("slice_bytes", self.slice_bytes.into()),
            ("predicted_us", self.predicted_us.into()),
            ("mapped", self.mapped.as_str().into()),
        ]
    }

    fn from_json(value: &Value) -> Option<Course> {
        let whole = |name| value.number(name).map_or(0, |number| number as usize);
        Some(Course {
            transport: value.text("transport")?.into(),
            algorithm: value.text("algorithm")?.into(),
            channels: whole("channels"),
            chunks: whole("chunks"),
            slices: whole("slices"),
            slice_bytes: whole("slice_bytes"),
            predicted_us: value.number("predicted_us").unwrap_or(f64::NAN),
            mapped: value.text("mapped").unwrap_or_default().into(),
        })
    }
}

impl Bucket {
    pub fn to_json(&self) -> Value {
        let own = [("bytes", self.bytes.into()), ("count", self.count.into())];
        object(own.into_iter().chain(self.course.fields()))
    }

    pub fn from_json(value: &Value) -> Option<Bucket> {
        let whole = |name| value.number(name).map(|number| number as usize);
        let course = Course::from_json(value)?;
        Some(Bucket { bytes: whole("bytes")?, count: whole("count")?, course })
    }
}

impl Row {
    pub fn to_json(&self) -> Value {
        let optional = |value: Option<usize>| value.map_or(Value::Null, Value::from);
        let own = [
            ("op", self.op.as_str().into()),
            ("bytes", self.bytes.into()),
            ("count", self.count.into()),
            ("type", self.data_type.as_str().into()),
            ("redop", self.redop.as_str().into()),
            ("root", optional(self.root)),
            ("ranks", self.ranks.into()),
            ("mode", self.mode.as_str().into()),
            ("in_place", self.in_place.into()),
            ("time_us", self.time_us.into()),
            ("min_us", self.min_us.into()),
            ("p99_us", self.p99_us.into()),
            ("algbw", self.algbw.into()),
            ("busbw", self.busbw.into()),
            ("mem_percent", self.mem.into()),
            ("wrong", optional(self.wrong)),
            ("iterations", self.iterations.into()),
            ("registered", self.registered.map_or(Value::Null, Value::from)),
        ];
        let buckets = match self.buckets.is_empty() {
            true => None,
            false => Some(Value::List(self.buckets.iter().map(Bucket::to_json).collect())),
        };
        let buckets = buckets.map(|list| ("buckets", list));
        object(own.into_iter().chain(self.course.fields()).chain(buckets))
    }

    /// `None` where a field is missing that every report has.
    pub fn from_json(value: &Value) -> Option<Row> {
        let text = |name| value.text(name).map(str::to_string);
        let whole = |name| value.number(name).map(|number| number as usize);
        let real = |name| value.number(name).unwrap_or(f64::NAN);
        let buckets = value.list("buckets").unwrap_or_default();
        Some(Row {
            op: text("op")?,
            bytes: whole("bytes")?,
            count: whole("count")?,
            data_type: text("type")?,
            redop: text("redop")?,
            root: whole("root"),
            ranks: whole("ranks")?,
            mode: text("mode")?,
            in_place: value.field("in_place")? == &Value::Bool(true),
            time_us: value.number("time_us")?,
            min_us: real("min_us"),
            p99_us: real("p99_us"),
            algbw: real("algbw"),
            busbw: real("busbw"),
            mem: real("mem_percent"),
            wrong: whole("wrong"),
            iterations: whole("iterations").unwrap_or(0),
            registered: match value.field("registered") {
                Some(Value::Bool(registered)) => Some(*registered),
                _ => None,
            },
            course: Course::from_json(value)?,
            buckets: buckets.iter().map(Bucket::from_json).collect::<Option<_>>()?,
        })
    }

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
        let text = row.to_json().to_string();
        assert_eq!(Row::from_json(&crate::report::json::parse(&text).unwrap()), Some(row));
    }
}
