//! `--trace`: the gradients of a real model, gathered into buckets as data-parallel training does,
//! so that one iteration is one step's all-reduces.

use super::expected_layout::Cell;
use crate::cli::operation::Operation;
use crate::cli::options::Options;
use crate::cli::values::data_type;
use ringcomm::plan::partition::Extent;
use ringcomm::types::DataType;

/// One gradient of the trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradient {
    pub name: String,
    pub count: usize,
    pub data_type: DataType,
}

/// A model's gradients of one type, bucketed.
#[derive(Clone, Debug)]
pub struct Step {
    pub data_type: DataType,
    pub buckets: Vec<Extent>,
}

/// `name count type` per line, in backward order; blank lines and `#` comments are skipped.
pub fn parse(text: &str) -> Result<Vec<Gradient>, String> {
    let (mut gradients, mut bytes) = (Vec::new(), 0usize);
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [name, count, kind] = fields[..] else {
            return Err(format!("line {}: want `name count type`, got {line:?}", number + 1));
        };
        let at = |why: String| format!("line {}: {why}", number + 1);
        let count: usize = count.parse().map_err(|_| at(format!("{count} is not a count")))?;
        let data_type = data_type(kind).map_err(|why| at(format!("{kind}: {why}")))?;
        bytes = count
            .checked_mul(data_type.size())
            .and_then(|more| bytes.checked_add(more))
            .filter(|bytes| *bytes <= isize::MAX as usize)
            .ok_or_else(|| at("more than an address space holds".into()))?;
        gradients.push(Gradient { name: name.into(), count, data_type });
    }
    if gradients.is_empty() {
        return Err("no gradients in it".into());
    }
    Ok(gradients)
}

/// Gradients join a bucket until it has reached its size; the first one is small, so that
/// communication begins early in the backward pass. Types are never mixed.
pub fn bucket(gradients: &[Gradient], first_bytes: usize, bytes: usize) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for data_type in DataType::ALL {
        let (mut buckets, mut open) = (Vec::new(), Extent::default());
        for gradient in gradients.iter().filter(|gradient| gradient.data_type == data_type) {
            open.count += gradient.count;
            let limit = if buckets.is_empty() { first_bytes } else { bytes };
            if open.count * data_type.size() >= limit {
                buckets.push(open);
                open = Extent { offset: open.offset + open.count, count: 0 };
            }
        }
        if open.count > 0 {
            buckets.push(open);
        }
        if !buckets.is_empty() {
            steps.push(Step { data_type, buckets });
        }
    }
    steps
}

/// The trace's steps, from its file.
pub fn load(options: &Options, path: &str) -> Result<Vec<Step>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let gradients = parse(&text).map_err(|why| format!("{path}: {why}"))?;
    Ok(bucket(&gradients, options.first_bucket_bytes, options.bucket_bytes))
}

/// A cell for each type of the trace and each reduction.
pub fn cells(options: &Options, path: &str) -> Result<Vec<Cell>, String> {
    let mut cells = Vec::new();
    for step in load(options, path)? {
        if options.names_reductions() {
            options.all_reduce_on(step.data_type).map_err(|why| format!("{path}: {why}"))?;
        }
        let count: usize = step.buckets.iter().map(|bucket| bucket.count).sum();
        let known = options.reductions.iter().filter(|op| op.supports(step.data_type));
        cells.extend(known.map(|op| Cell {
            operation: Operation::AllReduce,
            bytes: count * step.data_type.size(),
            data_type: step.data_type,
            op: *op,
            root: 0,
            buckets: step.buckets.clone(),
        }));
    }
    Ok(cells)
}

/// What the buckets are, for the lines above the table.
pub fn describe(options: &Options, path: &str) -> Result<String, String> {
    let mut lines = vec![format!("#\n# one training step of {path}:")];
    for step in load(options, path)? {
        let size = step.data_type.size();
        let sizes = step.buckets.iter().map(|bucket| {
            // MiB with one decimal, as the option takes them.
            format!("{:.1}", (bucket.count * size) as f64 / f64::from(1 << 20))
        });
        let sizes: Vec<String> = sizes.collect();
        let count: usize = step.buckets.iter().map(|bucket| bucket.count).sum();
        lines.push(format!(
            "#   {count} {} in {} buckets of {} MiB",
            step.data_type,
            sizes.len(),
            sizes.join(" ")
        ));
    }
    Ok(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_close_when_they_are_full() {
        let text = "# a model\na 100 float\nb 200 float\n\nc 50 half\nd 10 float\ne 300 float\n";
        let steps = bucket(&parse(text).unwrap(), 400, 1000);
        let floats = steps.iter().find(|step| step.data_type == DataType::Float32).unwrap();
        let extent = |offset, count| Extent { offset, count };
        assert_eq!(floats.buckets, vec![extent(0, 100), extent(100, 510)]);
        assert_eq!(steps.len(), 2);
    }

    #[test]
    fn a_bad_line_is_named() {
        assert!(parse("a 1 float\nb two float").unwrap_err().starts_with("line 2"));
        assert!(parse("a 1").unwrap_err().contains("name count type"));
        assert!(parse("a 1 flot").unwrap_err().contains("did you mean float?"));
        assert!(parse("# nothing").is_err());
        // Each fits, but not all together.
        let large = format!("a {0} float\nb {0} float\nc {0} float", usize::MAX / 16);
        assert!(parse(&large).unwrap_err().starts_with("line 3: more than"), "{large}");
    }
}
