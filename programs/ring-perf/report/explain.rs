//! How the calls of a row run, as the library explains them: one call, or all those of a step,
//! whose prediction is the sum of theirs.

use super::row::{Bucket, Course, Row};
use super::table::time;
use crate::cli::options::Options;
use crate::measure::buffers::Stage;
use crate::measure::expected_layout::Cell;
use crate::ranks::endpoint::Endpoint;
use ringcomm::communicator::{Call, Explanation, Mapped, VectorCounts};
use ringcomm::plan::Collective;
use ringcomm::types::DataType;

/// Complete a row by what the library says of its next call or step.
pub fn explain(
    row: &mut Row,
    cell: &Cell,
    stage: &mut Stage,
    options: &Options,
    endpoint: &dyn Endpoint,
) {
    row.registered = Some(options.register);
    row.course = Course {
        transport: "messages".into(),
        algorithm: "direct".into(),
        predicted_us: f64::NAN,
        ..Course::default()
    };
    if cell.operation.collective().is_none() {
        if let Some(transport) = of_messages(row.ranks, endpoint) {
            row.course.transport = transport;
        }
        return;
    }
    let is_step = !cell.buckets.is_empty();
    let mut calls = Vec::new();
    for call in stage.aimed() {
        let bytes = if is_step { call.count * cell.data_type.size() } else { row.bytes };
        let Ok(explanation) = endpoint.explain(&call) else { return };
        let (course, mapped) = course(&explanation, bytes, row.in_place, options);
        calls.push((Bucket { bytes, count: call.count, course }, mapped));
    }
    row.course = together(&calls);
    if is_step {
        row.buckets = calls.into_iter().map(|(bucket, _)| bucket).collect();
    }
}

/// How messages move: as those of a collective that is made of them, here an empty one.
fn of_messages(nranks: usize, endpoint: &dyn Endpoint) -> Option<String> {
    let none = || vec![0; nranks];
    let vector = VectorCounts {
        send_counts: none(),
        send_displacements: none(),
        recv_counts: none(),
        recv_displacements: none(),
    };
    let call = Call::new(Collective::AllToAll, DataType::Uint8);
    let call = Call { vector: Some(&vector), ..call };
    Some(transport(&endpoint.explain(&call).ok()?))
}

/// How data moves, and over which network engine.
fn transport(explanation: &Explanation) -> String {
    let network = explanation.network.as_ref().map(|network| format!(" ({network})"));
    format!("{}{}", explanation.transport, network.unwrap_or_default())
}

/// How a call of so many bytes runs, and what would have run in registered buffers if it did not.
fn course(
    explanation: &Explanation,
    bytes: usize,
    in_place: bool,
    options: &Options,
) -> (Course, Option<Mapped>) {
    // What runs unless the buffers are registered, which those of a row are or are not.
    let transport = transport(explanation).replace("shm/direct or ", "");
    let course = Course {
        algorithm: explanation.algorithm.into(),
        order: explanation.order.into(),
        transport,
        channels: explanation.channels,
        chunks: explanation.chunks,
        slices: explanation.slices,
        slice_bytes: explanation.slice_bytes,
        predicted_us: explanation.predicted_us,
        mapped: String::new(),
    };
    let direct = |mapped: Mapped, transport: &str| Course {
        algorithm: mapped.algorithm.into(),
        transport: transport.into(),
        chunks: mapped.chunks,
        slices: 1,
        slice_bytes: bytes.div_ceil(mapped.chunks.max(1)),
        predicted_us: mapped.predicted_us,
        ..course.clone()
    };
    let mapped = explanation.mapped.filter(|mapped| mapped.in_place || !in_place);
    match (explanation.transport.strip_prefix("threads/direct or "), mapped) {
        (Some(_), Some(mapped)) => (direct(mapped, "threads/direct"), None),
        (Some(otherwise), None) => (Course { transport: otherwise.to_string(), ..course }, None),
        (None, Some(mapped)) if options.register => (direct(mapped, "shm/direct"), None),
        (None, mapped) => (course, mapped),
    }
}

/// The names that there are, each once, in the order of their first.
fn joined<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut all: Vec<&str> = Vec::new();
    names.for_each(|name| {
        if !all.contains(&name) {
            all.push(name);
        }
    });
    all.join("+")
}

/// The course of calls one after the other. Numbers that are of one call only are left out where
/// there are several.
fn together(calls: &[(Bucket, Option<Mapped>)]) -> Course {
    let courses = || calls.iter().map(|(bucket, _)| &bucket.course);
    let alone = match calls {
        [(bucket, _)] => bucket.course.clone(),
        _ => Course::default(),
    };
    let mapped = match calls.iter().any(|(_, mapped)| mapped.is_some()) {
        false => String::new(),
        true => {
            let names = calls.iter().map(|(bucket, mapped)| {
                mapped.map_or(bucket.course.algorithm.as_str(), |mapped| mapped.algorithm)
            });
            let times = calls.iter().map(|(bucket, mapped)| {
                mapped.map_or(bucket.course.predicted_us, |mapped| mapped.predicted_us)
            });
            format!(
                "registered: {} over shm/direct, predicted {} us",
                joined(names),
                time(times.sum())
            )
        }
    };
    Course {
        algorithm: joined(courses().map(|course| course.algorithm.as_str())),
        transport: joined(courses().map(|course| course.transport.as_str())),
        predicted_us: courses().map(|course| course.predicted_us).sum(),
        mapped,
        ..alone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(algorithm: &str, predicted_us: f64) -> Bucket {
        let course = Course {
            algorithm: algorithm.into(),
            transport: "shm/slots".into(),
            chunks: 2,
            predicted_us,
            ..Course::default()
        };
        Bucket { bytes: 8, count: 2, course }
    }

    #[test]
    fn a_step_takes_as_long_as_its_calls_together() {
        let mapped = Mapped { algorithm: "twoshot", chunks: 2, in_place: true, predicted_us: 5.0 };
        let calls = [
            (bucket("ring", 10.0), Some(mapped)),
            (bucket("oneshot", 1.0), None),
            (bucket("ring", 30.0), Some(mapped)),
        ];
        let step = together(&calls);
        assert_eq!((step.algorithm.as_str(), step.predicted_us), ("ring+oneshot", 41.0));
        assert_eq!((step.transport.as_str(), step.chunks), ("shm/slots", 0));
        let mapped = "registered: twoshot+oneshot over shm/direct, predicted 11.00 us";
        assert_eq!(step.mapped, mapped);
        // A call alone is itself, all of it.
        let one = bucket("ring", 10.0);
        assert_eq!(together(&[(one.clone(), None)]), one.course);
    }
}
