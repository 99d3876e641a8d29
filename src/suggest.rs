//! Which known name a mistyped one was meant to be: what every program's errors suggest.

/// The known name that takes the fewest edits to reach, if they are few for its length. Words that
/// are only joined otherwise are the same name.
pub fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let joined = |name: &str| name.replace(['-', '_'], "");
    if let Some(same) = known.iter().find(|known| joined(known) == joined(name)) {
        return Some(same);
    }
    let best = known.iter().map(|known| (edits(name, known), *known)).min()?;
    // A third of the letters wrong is still a slip; more is another word. An unfinished word
    // counts.
    let prefix = known.iter().find(|known| name.len() >= 3 && known.starts_with(name));
    if best.0 <= (best.1.len() / 3).max(1) { Some(best.1) } else { prefix.copied() }
}

/// Letters to insert, delete, change or swap with their neighbour (Damerau and Levenshtein).
fn edits(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut table = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            table[i][j] = match (i, j) {
                (0, _) | (_, 0) => i + j,
                _ => {
                    let change = table[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                    change.min(table[i - 1][j] + 1).min(table[i][j - 1] + 1)
                }
            };
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                table[i][j] = table[i][j].min(table[i - 2][j - 2] + 1);
            }
        }
    }
    table[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_name_and_another_word_finds_none() {
        let known = ["hostfile", "hosts", "np"];
        for slip in ["hostfil", "hsotfile", "hostfilee", "hostfi"] {
            assert_eq!(nearest(slip, &known), Some("hostfile"), "{slip}");
        }
        assert_eq!(nearest("verbose", &known), None);
        assert_eq!(nearest("allgatherv", &["all_gather", "all_gather_v"]), Some("all_gather_v"));
    }
}
