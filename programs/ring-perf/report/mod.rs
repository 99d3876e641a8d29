//! What is printed: rows, tables, comparisons, plots and explanations.

pub(super) mod compare;
pub(super) mod explain;
pub(super) mod machine;
pub(super) mod plot;
pub(super) mod row;
pub(super) mod table;
