//! `--compare`: this run against an older report, row by row.

use super::row::Row;
use serde::Deserialize;

#[derive(Deserialize)]
struct Report {
    rows: Vec<Row>,
}

/// The rows of a report that `--json` wrote.
pub fn read(path: &str) -> Result<Vec<Row>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let report: Report = serde_json::from_str(&text)
        .map_err(|error| format!("{path}: no report of ring-perf: {error}"))?;
    Ok(report.rows)
}

/// What came of a comparison.
pub struct Comparison {
    pub text: String,
    /// Rows that took longer than the tolerance allows.
    pub slower: usize,
    /// Rows that both reports have.
    pub matched: usize,
}

/// Ratios of median times, new to old; above `1 + tolerance` a row is too slow.
pub fn compare(new: &[Row], old: &[Row], tolerance: f64) -> Comparison {
    let mut text = format!("#\n# {:>9} {:>10} {:>10}\n", "new/old", "old (us)", "new (us)");
    let (mut slower, mut matched, mut others, mut logs) = (0, 0, 0, 0.0);
    for row in new {
        let Some(before) = old.iter().find(|old| old.key() == row.key()) else { continue };
        let ratio = row.time_us / before.time_us;
        matched += 1;
        logs += ratio.ln();
        let late = ratio > 1.0 + tolerance;
        slower += usize::from(late);
        let unlike = unlike(row, before);
        text += &format!(
            "  {ratio:>9.3} {:>10.3} {:>10.3}  {}{}{}\n",
            before.time_us,
            row.time_us,
            row.key(),
            unlike.as_ref().map_or(String::new(), |unlike| format!("  ({unlike})")),
            if late { "  SLOWER" } else { "" }
        );
        others += usize::from(unlike.is_some());
    }
    if others > 0 {
        text += &format!(
            "# {others} rows of other memory or another transport than before: these times are of \
             different things\n"
        );
    }
    let missing = |rows: &[Row], from: &[Row], which: &str| {
        let in_it = |row: &&Row| from.iter().any(|other| other.key() == row.key());
        let keys: Vec<String> = rows.iter().filter(|row| !in_it(row)).map(Row::key).collect();
        let [first, further @ ..] = &keys[..] else { return String::new() };
        format!("# only in the {which} report: {first}, and {} more\n", further.len())
    };
    text += &missing(new, old, "new");
    text += &missing(old, new, "old");
    if matched == 0 {
        text += "# no row is in both reports\n";
    } else {
        text += &format!(
            "# {matched} rows in both, geometric mean {:.3}, {slower} more than {:.0} % slower\n",
            (logs / matched as f64).exp(),
            tolerance * 100.0
        );
    }
    Comparison { text, slower, matched }
}

/// What of the same call was not the same: how data moved, and in which memory. The key leaves it
/// out, so that one may be compared with the other.
fn unlike(new: &Row, old: &Row) -> Option<String> {
    let memory = |registered| if registered { "registered" } else { "not registered" };
    let mut changes = Vec::new();
    if let (Some(now), Some(before)) = (new.registered, old.registered)
        && now != before
    {
        changes.push(format!("{}, before: {}", memory(now), memory(before)));
    }
    let (now, before) = (&new.course.transport, &old.course.transport);
    if now != before {
        changes.push(format!("{now}, before: {before}"));
    }
    (!changes.is_empty()).then(|| changes.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::row::Course;

    #[test]
    fn what_moved_otherwise_is_said() {
        let row = |transport: &str, registered| {
            let course = Course { transport: transport.into(), ..Course::default() };
            Row { bytes: 8, time_us: 1.0, course, registered, ..Row::default() }
        };
        let shared = row("shm/slots", Some(false));
        let text = |new: &Row, old: &Row| {
            compare(std::slice::from_ref(new), std::slice::from_ref(old), 0.1).text
        };
        assert!(!text(&shared, &shared).contains("before"));
        let told = text(&row("net/tcp", Some(false)), &shared);
        assert!(told.contains("(net/tcp, before: shm/slots)\n# 1 rows of other"), "{told}");
        let told = text(&row("shm/direct", Some(true)), &shared);
        let wanted = "(registered, before: not registered; shm/direct, before: shm/slots)";
        assert!(told.contains(wanted), "{told}");
        // An older report does not say.
        assert!(!text(&shared, &row("shm/slots", None)).contains("before"));
    }

    #[test]
    fn only_past_the_tolerance_is_slower() {
        let row = |bytes, time_us| Row { bytes, time_us, ..Row::default() };
        let old = [row(8, 1.0), row(16, 1.0), row(32, 1.0)];
        let new = [row(8, 1.09), row(16, 1.2), row(64, 9.0)];
        let comparison = compare(&new, &old, 0.1);
        assert_eq!((comparison.matched, comparison.slower), (2, 1));
        assert!(comparison.text.contains("SLOWER"));
        assert!(comparison.text.contains("only in the new report:  64 B"), "{}", comparison.text);
        assert!(comparison.text.contains("only in the old report:  32 B"), "{}", comparison.text);
        assert_eq!(compare(&new[2..], &old, 0.1).matched, 0);
    }
}
