//! Slurm's lists: `node[01-03,7],gpu-[1-2]-x[3,5]` as host names, `2(x3),1` as tasks per node.
//!
//! A host's name is text and bracketed sets in turn; several sets multiply, the last one fastest. A
//! number in a range is written as wide as the range's first.

use crate::error::{Error, Result};

/// Most hosts or nodes in a list: four times the nodes of the largest Slurm cluster configured, and
/// few enough that a damaged list takes no memory worth naming.
const MOST: usize = 65_536;

/// The hosts of a list, in its order.
pub fn hosts(text: &str) -> Result<Vec<String>> {
    let wrong = |why: &str| {
        Error::argument(format!("{text:?} is no list of hosts as Slurm writes them: {why}"))
    };
    let mut all = Vec::new();
    for item in split(text, wrong)? {
        all.extend(expand(item).map_err(|why| wrong(&why))?);
        if all.len() > MOST {
            return Err(wrong("too many hosts"));
        }
    }
    Ok(all)
}

/// The items of a list: commas within brackets do not separate.
fn split(text: &str, wrong: impl Fn(&str) -> Error) -> Result<Vec<&str>> {
    let (mut items, mut start, mut inside) = (Vec::new(), 0, false);
    for (at, character) in text.char_indices() {
        match (character, inside) {
            ('[', true) => return Err(wrong("a bracket within brackets")),
            (']', false) => return Err(wrong("a bracket closes that was not opened")),
            ('[', false) | (']', true) => inside = !inside,
            (',', false) => {
                items.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    items.push(&text[start..]);
    match () {
        () if inside => Err(wrong("a bracket is not closed")),
        () if items.iter().any(|item| item.is_empty()) => Err(wrong("a host without a name")),
        () => Ok(items),
    }
}

/// One item without its brackets.
fn expand(item: &str) -> std::result::Result<Vec<String>, String> {
    let mut names = vec![String::new()];
    let mut rest = item;
    while !rest.is_empty() {
        let (literal, after) = rest.split_once('[').unwrap_or((rest, ""));
        names.iter_mut().for_each(|name| name.push_str(literal));
        if literal.len() == rest.len() {
            break;
        }
        let (set, after) = after.split_once(']').ok_or("a bracket is not closed")?;
        let numbers = numbers(set)?;
        if names.len().saturating_mul(numbers.len()) > MOST {
            return Err("too many hosts".into());
        }
        let with = |name: String| numbers.iter().map(move |number| format!("{name}{number}"));
        names = names.into_iter().flat_map(with).collect();
        rest = after;
    }
    Ok(names)
}

/// The numbers of a set, as they are written in names.
fn numbers(set: &str) -> std::result::Result<Vec<String>, String> {
    let mut all = Vec::new();
    for range in set.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
            true => text.parse::<u64>().map_err(|_| format!("{range:?} is no range of numbers")),
            false => Err(format!("{range:?} is no range of numbers")),
        };
        let (first, last, width) = (number(low)?, number(high)?, low.len());
        if last < first {
            return Err(format!("the range {range:?} ends before it begins"));
        }
        if last - first >= MOST as u64 || all.len() > MOST {
            return Err("too many hosts".into());
        }
        all.extend((first..=last).map(|number| format!("{number:0width$}")));
    }
    Ok(all)
}

/// The number of tasks on each node: `2(x3),1` is 2, 2, 2, 1.
pub fn tasks_per_node(text: &str) -> Result<Vec<usize>> {
    let wrong = || Error::argument(format!("{text:?} does not say the tasks of each node"));
    let mut all = Vec::new();
    for item in text.split(',') {
        let (tasks, times) = match item.split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')').ok_or_else(wrong)?),
            None => (item, "1"),
        };
        let times: usize = times.parse().map_err(|_| wrong())?;
        if all.len().saturating_add(times) > MOST {
            return Err(wrong());
        }
        let tasks: usize = tasks.parse().map_err(|_| wrong())?;
        all.resize(all.len() + times, tasks);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_form_of_a_list_is_read() {
        let cases = [
            ("vm", vec!["vm"]),
            ("a,b-2.example", vec!["a", "b-2.example"]),
            ("node[01-03,7]", vec!["node01", "node02", "node03", "node7"]),
            ("n[9-11]", vec!["n9", "n10", "n11"]),
            ("n[098-101]x", vec!["n098x", "n099x", "n100x", "n101x"]),
            ("gpu-[1-2]-x[3,5]", vec!["gpu-1-x3", "gpu-1-x5", "gpu-2-x3", "gpu-2-x5"]),
            ("[1-2]", vec!["1", "2"]),
            ("b1,a[2,1],c", vec!["b1", "a2", "a1", "c"]),
        ];
        for (text, wanted) in cases {
            assert_eq!(hosts(text).unwrap(), wanted, "{text}");
        }
    }

    #[test]
    fn what_is_no_list_says_why() {
        let cases = [
            ("", "without a name"),
            ("a,,b", "without a name"),
            ("a[1-2", "not closed"),
            ("a1-2]", "not opened"),
            ("a[1,[2]]", "within brackets"),
            ("a[2-1]", "ends before"),
            ("a[x]", "no range"),
            ("a[]", "no range"),
            ("a[1-2-3]", "no range"),
            ("a[+1]", "no range"),
            ("a[0-99999999999999999999]", "no range"),
            ("a[0-99999999]", "too many"),
            ("a[0-999][0-999]", "too many"),
        ];
        for (text, why) in cases {
            let error = hosts(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn tasks_of_nodes_are_read() {
        assert_eq!(tasks_per_node("2(x3),1").unwrap(), [2, 2, 2, 1]);
        assert_eq!(tasks_per_node("4").unwrap(), [4]);
        for bad in ["", "x", "2(x", "2(x3", "1,", "2(x99999999999)"] {
            assert!(tasks_per_node(bad).is_err(), "{bad}");
        }
    }

    /// A part of a name: text, or a set of ranges with the width of their numbers.
    #[derive(Clone, Debug)]
    enum Part {
        Text(String),
        Set(Vec<(u64, u64, usize)>),
    }

    fn part() -> impl Strategy<Value = Part> {
        let range = (0u64..120, 0u64..4, 1usize..5)
            .prop_map(|(low, more, width)| (low, low + more, width.max(low.to_string().len())));
        prop_oneof![
            "[a-z][a-z0-9.-]{0,5}".prop_map(Part::Text),
            prop::collection::vec(range, 1..4).prop_map(Part::Set),
        ]
    }

    fn write(item: &[Part]) -> String {
        let range = |(low, high, width): &(u64, u64, usize)| match low == high {
            true => format!("{low:0width$}"),
            false => format!("{low:0width$}-{high:0width$}"),
        };
        let part = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Set(ranges) => {
                format!("[{}]", ranges.iter().map(range).collect::<Vec<_>>().join(","))
            }
        };
        item.iter().map(part).collect()
    }

    fn names(item: &[Part]) -> Vec<String> {
        let Some((first, rest)) = item.split_first() else { return vec![String::new()] };
        let heads = match first {
            Part::Text(text) => vec![text.clone()],
            Part::Set(ranges) => ranges
                .iter()
                .flat_map(|&(low, high, width)| (low..=high).map(move |n| format!("{n:0width$}")))
                .collect(),
        };
        let tails = names(rest);
        heads
            .iter()
            .flat_map(|head| tails.iter().map(move |tail| format!("{head}{tail}")))
            .collect()
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_back(
            list in prop::collection::vec(prop::collection::vec(part(), 1..4), 1..5),
        ) {
            let text = list.iter().map(|item| write(item)).collect::<Vec<_>>().join(",");
            let wanted: Vec<String> = list.iter().flat_map(|item| names(item)).collect();
            prop_assert_eq!(hosts(&text).unwrap(), wanted);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[a-c0-9,\\[\\]()x-]{0,24}") {
            let _ = hosts(&text);
            let _ = tasks_per_node(&text);
        }
    }
}
