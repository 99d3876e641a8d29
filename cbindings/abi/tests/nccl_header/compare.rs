//! Where the crate and a header differ, in words.

use super::declarations::{Declarations, Structure, Type};
use super::header::Release;

/// A name that is let off, and why.
pub type Reasons = &'static [(&'static str, &'static str)];

/// What differs and may.
#[derive(Clone, Copy)]
pub struct Exceptions {
    /// Constants whose numbers tell releases apart.
    pub changing: Reasons,
    /// Functions that a header declares and the crate has not.
    pub not_ours: Reasons,
    /// Functions of the crate that the newest header does not declare.
    pub not_theirs: Reasons,
}

fn has(reasons: Reasons, name: &str) -> bool {
    reasons.iter().any(|(known, _)| *known == name)
}

/// Everything in which the crate differs from a release.
pub fn differences(release: &Release, ours: &Declarations, but: &Exceptions) -> Vec<String> {
    let mut found = Vec::new();
    for (c, are_needed) in [(&release.core, true), (&release.device, false)] {
        let pair = Pair { c, ours };
        found.extend(pair.prototypes());
        found.extend(pair.aliases());
        found.extend(pair.structures(release.is_newest, are_needed));
        found.extend(pair.constants(release.is_newest, are_needed, but));
    }
    if release.is_newest {
        found.extend(later(release, ours));
        found.extend(unknown(release, ours, but));
    }
    let told = found.iter().map(|difference| format!("NCCL {}: {difference}", release.version));
    lacking(release, ours, but).into_iter().chain(told).collect()
}

/// `ncclX` and `pncclX` are one function, whose item is called `pncclX`.
fn item_of(function: &str) -> String {
    format!("p{}", function.trim_start_matches('p'))
}

/// The names that a release declares, each once and as `ncclX`.
fn declared(release: &Release) -> Vec<String> {
    let all = release.core.functions.keys().chain(release.device.functions.keys());
    let mut names: Vec<String> = all.map(|name| item_of(name)[1..].to_string()).collect();
    names.sort();
    names.dedup();
    names
}

/// Functions that the crate lacks.
fn lacking(release: &Release, ours: &Declarations, but: &Exceptions) -> Option<String> {
    let is_lacking =
        |name: &String| !ours.functions.contains_key(&item_of(name)) && !has(but.not_ours, name);
    let names: Vec<String> = declared(release).into_iter().filter(is_lacking).collect();
    let verb = if release.is_newest { "adds" } else { "has" };
    (!names.is_empty()).then(|| format!("NCCL {} {verb}: {}", release.version, names.join("; ")))
}

/// Functions that only the crate has, and exceptions that are none.
fn unknown(release: &Release, ours: &Declarations, but: &Exceptions) -> Vec<String> {
    let declared = declared(release);
    let is_theirs = |name: &str| declared.iter().any(|known| known == name);
    let is_ours = |name: &str| ours.functions.contains_key(&item_of(name));
    let mut found = Vec::new();
    for item in ours.functions.keys().filter(|item| item.starts_with("pnccl")) {
        let name = &item[1..];
        if !is_theirs(name) && !has(but.not_theirs, name) {
            found.push(format!("it has no {name}, which the crate exports"));
        }
    }
    let stale = but.not_ours.iter().filter(|(name, _)| is_ours(name) || !is_theirs(name));
    found.extend(stale.map(|(name, _)| format!("{name} is no exception any more")));
    let stale = but.not_theirs.iter().filter(|(name, _)| is_theirs(name) || !is_ours(name));
    found.extend(stale.map(|(name, _)| format!("{name} is no exception any more")));
    found
}

/// A number of C and the crate's, which may be missing.
fn stated(name: &str, c: i64, own: Option<i64>) -> String {
    let own = own.map_or("nothing".into(), |own| own.to_string());
    format!("{name} is {c} in C, {own} in Rust")
}

/// What programs learn from a version that the newest release has not reached is not known.
fn later(release: &Release, ours: &Declarations) -> Option<String> {
    let name = "NCCL_VERSION_CODE";
    let newest = release.core.constants[name].value;
    let own = ours.constants.get(name).map(|own| own.value);
    own.is_none_or(|own| own > newest).then(|| stated(name, newest, own))
}

/// Macros that say which release it is; [`later`] looks at ours.
const VERSION: [&str; 4] = ["NCCL_MAJOR", "NCCL_MINOR", "NCCL_PATCH", "NCCL_VERSION_CODE"];

/// A header, and the crate.
struct Pair<'a> {
    c: &'a Declarations,
    ours: &'a Declarations,
}

impl Pair<'_> {
    fn prototypes(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (name, wanted) in &self.c.functions {
            let item = item_of(name);
            let Some(had) = self.ours.functions.get(&item) else { continue };
            // Of two that are alike one is enough.
            if *name == item && self.c.functions.get(&item[1..]) == Some(wanted) {
                continue;
            }
            let mut arguments = wanted.arguments.iter().zip(&had.arguments);
            let is_same = had.arguments.len() == wanted.arguments.len()
                && self.same(&wanted.result, &had.result)
                && arguments.all(|(c, ours)| self.same(c, ours));
            if !is_same {
                found.push(format!("{name} is {wanted} in C, {had} in Rust"));
            }
        }
        found
    }

    /// Types that both have a name for stand for the same.
    fn aliases(&self) -> Vec<String> {
        let mut found = Vec::new();
        for name in self.c.aliases.keys().filter(|name| self.ours.knows(name)) {
            let (c, own) = (shape(self.c, name), shape(self.ours, name));
            if c != own {
                found.push(format!("{name} is {c} in C, {own} in Rust"));
            }
        }
        found
    }

    fn structures(&self, is_newest: bool, are_needed: bool) -> Vec<String> {
        let mut found = Vec::new();
        for (name, structure) in &self.c.structures {
            if !name.starts_with("nccl") || name.contains("__bindgen") || structure.is_opaque() {
                continue;
            }
            let name = self.c.public(name);
            let Some(own) = self.ours.structure(name) else {
                if are_needed {
                    found.push(format!("the crate has no {name}"));
                }
                continue;
            };
            if own.is_opaque() && !are_needed {
                continue;
            }
            if !own.is_in_c_layout {
                found.push(format!("{name} is not in C's layout"));
            }
            found.extend(self.fields(name, structure, own, is_newest));
        }
        found
    }

    /// Where both begin with the same fields, these have the same offsets.
    fn fields(
        &self,
        name: &str,
        c: &Structure,
        own: &Structure,
        is_newest: bool,
    ) -> Option<String> {
        let field = |of: &Structure, at: usize| {
            of.fields.get(at).map_or("nothing".into(), |(name, of)| format!("{name}: {of}"))
        };
        let is_same = |at: usize| match (c.fields.get(at), own.fields.get(at)) {
            (Some((c, c_type)), Some((own, own_type))) => c == own && self.same(c_type, own_type),
            // Later releases have more.
            (None, _) => !is_newest,
            (Some(_), None) => false,
        };
        let at = (0..c.fields.len().max(own.fields.len())).find(|at| !is_same(*at))?;
        let (c, own) = (field(c, at), field(own, at));
        Some(format!("field {at} of {name} is {c} in C, {own} in Rust"))
    }

    fn constants(&self, is_newest: bool, are_needed: bool, but: &Exceptions) -> Vec<String> {
        let mut found = Vec::new();
        for (name, constant) in &self.c.constants {
            let is_changing = has(but.changing, name);
            if VERSION.contains(&name.as_str()) || is_changing && !is_newest {
                continue;
            }
            // Older macros may have gone, and what has no name in C needs none in Rust.
            let is_macro = !self.c.is_enum(&constant.of);
            let is_let_off = is_changing || is_macro && !(is_newest && name.starts_with("NCCL_"));
            let own = self.ours.constants.get(name).map(|own| own.value);
            if own.map_or(are_needed && !is_let_off, |own| own != constant.value) {
                found.push(stated(name, constant.value, own));
            }
        }
        found
    }

    /// Whether a type of C is one of ours: by its name, where both have that; else by what it
    /// stands for.
    fn same(&self, c: &Type, own: &Type) -> bool {
        match (c, own) {
            (
                Type::Pointer { is_mutable: c_mutable, to: c },
                Type::Pointer { is_mutable: own_mutable, to: own },
            ) => c_mutable == own_mutable && (self.same(c, own) || self.is_unseen(c, own)),
            (
                Type::Array { of: c, length: c_length },
                Type::Array { of: own, length: own_length },
            ) => c_length == own_length && self.same(c, own),
            (Type::Named(c), Type::Named(own)) => self.same_name(c, own),
            // Each is a name that may stand for a pointer.
            (Type::Named(name), other) => match self.c.meaning(name) {
                Type::Named(_) => false,
                c => self.same(&c, other),
            },
            (other, Type::Named(name)) => match self.ours.meaning(name) {
                Type::Named(_) => false,
                own => self.same(other, &own),
            },
            _ => false,
        }
    }

    /// Behind a pointer, what the crate has no name for: it never looks at that.
    fn is_unseen(&self, c: &Type, own: &Type) -> bool {
        let is_unknown = |name: &str| self.c.knows(name) && !self.ours.knows(self.c.public(name));
        *own == Type::Named("c_void".into()) && matches!(c, Type::Named(name) if is_unknown(name))
    }

    fn same_name(&self, c: &str, own: &str) -> bool {
        let (c, own) = (self.c.public(c), self.ours.public(own));
        if c == own {
            return true;
        }
        // Each would be called by the name that the other has for it.
        if self.ours.knows(c) || self.c.knows(own) {
            return false;
        }
        let is_enum = self.c.is_enum(c);
        match (self.c.meaning(c), self.ours.meaning(own)) {
            (Type::Named(c), Type::Named(own)) => {
                // A byte that is 0 or 1 in C may be any in Rust.
                let is_number = c == own || c == "bool" && own == "u8";
                let is_of_enum = is_enum && ["i32", "u32"].contains(&own.as_str());
                is_number || is_of_enum || self.same_inside(&c, &own)
            }
            (c, own) => self.same(&c, &own),
        }
    }

    /// Whether structures that each have a name of their own are one.
    fn same_inside(&self, c: &str, own: &str) -> bool {
        let (c, own) = (self.c.structures.get(c), self.ours.structures.get(own));
        c.zip(own).is_some_and(|(c, own)| {
            let is_one_kind = c.is_union == own.is_union && own.is_in_c_layout;
            is_one_kind && self.fields("", c, own, true).is_none()
        })
    }
}

/// What those take a type for who agree on how to call.
fn shape(of: &Declarations, name: &str) -> String {
    let bytes = match name {
        "bool" | "i8" | "u8" | "c_char" => 1,
        "i16" | "u16" => 2,
        "i32" | "u32" => 4,
        "i64" | "u64" | "usize" => 8,
        _ => {
            return match of.aliases.get(name) {
                Some(Type::Named(inner)) => shape(of, inner),
                Some(Type::Pointer { .. }) => "a pointer".into(),
                Some(other) => other.to_string(),
                None if of.structures.contains_key(name) => "a structure".into(),
                None => name.into(),
            };
        }
    };
    format!("a number of {bytes} bytes")
}
