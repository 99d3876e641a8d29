//! What a source of Rust declares for C, in one spelling: bindgen's output, and the crate's own.

use quote::ToTokens;
use std::collections::BTreeMap;
use std::fmt;
use syn::visit::{self, Visit};

/// A type, with C's names of numbers as Rust's.
#[derive(Clone, Debug, PartialEq)]
pub enum Type {
    Named(String),
    Pointer { is_mutable: bool, to: Box<Type> },
    Array { of: Box<Type>, length: String },
}

impl fmt::Display for Type {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Named(name) => out.write_str(name),
            Type::Pointer { is_mutable: true, to } => write!(out, "*mut {to}"),
            Type::Pointer { is_mutable: false, to } => write!(out, "*const {to}"),
            Type::Array { of, length } => write!(out, "[{of}; {length}]"),
        }
    }
}

/// A function, whose arguments C knows by their places.
#[derive(Clone, Debug, PartialEq)]
pub struct Prototype {
    pub arguments: Vec<Type>,
    pub result: Type,
}

impl fmt::Display for Prototype {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arguments: Vec<String> = self.arguments.iter().map(Type::to_string).collect();
        write!(out, "({}) -> {}", arguments.join(", "), self.result)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Structure {
    pub is_union: bool,
    pub is_in_c_layout: bool,
    pub fields: Vec<(String, Type)>,
}

impl Structure {
    /// Only pointers to it are of use.
    pub fn is_opaque(&self) -> bool {
        let is_nothing = |of: &Type| matches!(of, Type::Array { length, .. } if length == "0");
        self.fields.iter().all(|(_, of)| is_nothing(of))
    }
}

/// A number, and the name of its type: for one of an enum that of the enum.
#[derive(Clone, Debug, PartialEq)]
pub struct Constant {
    pub of: String,
    pub value: i64,
}

/// All of them by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Declarations {
    pub functions: BTreeMap<String, Prototype>,
    pub constants: BTreeMap<String, Constant>,
    pub structures: BTreeMap<String, Structure>,
    pub aliases: BTreeMap<String, Type>,
}

impl Declarations {
    /// Those of sources that name each other's constants.
    pub fn read<'a>(sources: impl Iterator<Item = &'a str>) -> Self {
        let mut reader = Reader::default();
        for source in sources {
            reader.visit_file(&syn::parse_file(source).expect("Rust"));
        }
        reader.finished()
    }

    /// The name that programs know a type by: C has `struct ncclTeam`, and `ncclTeam_t` for it.
    pub fn public<'a>(&'a self, name: &'a str) -> &'a str {
        let is_for = |to: &Type| matches!(to, Type::Named(inner) if inner == name);
        let is_public = |(alias, to): &(&String, &Type)| alias.ends_with("_t") && is_for(to);
        match self.aliases.iter().find(is_public) {
            Some((alias, _)) if self.knows(name) => alias,
            _ => name,
        }
    }

    pub fn knows(&self, name: &str) -> bool {
        self.aliases.contains_key(name) || self.structures.contains_key(name)
    }

    /// What a name stands for.
    pub fn meaning(&self, name: &str) -> Type {
        match self.aliases.get(name) {
            Some(Type::Named(inner)) => self.meaning(inner),
            Some(other) => other.clone(),
            None => Type::Named(name.into()),
        }
    }

    /// A structure by any of its names.
    pub fn structure(&self, name: &str) -> Option<&Structure> {
        match self.meaning(name) {
            Type::Named(name) => self.structures.get(&name),
            _ => None,
        }
    }

    pub fn is_enum(&self, name: &str) -> bool {
        self.aliases.contains_key(name) && self.constants.values().any(|one| one.of == name)
    }
}

/// C's names of numbers, by what they are on every machine that the library runs on.
const NUMBERS: [(&str, &str); 8] = [
    ("c_short", "i16"),
    ("c_int", "i32"),
    ("c_uint", "u32"),
    ("c_long", "i64"),
    ("c_ulong", "u64"),
    ("c_longlong", "i64"),
    ("c_ulonglong", "u64"),
    ("size_t", "usize"),
];

#[derive(Default)]
struct Reader {
    found: Declarations,
    /// Constants whose value may name others.
    constants: Vec<(String, String, syn::Expr)>,
}

impl Reader {
    /// Everything, once all constants are known.
    fn finished(mut self) -> Declarations {
        let mut left = self.constants.len() + 1;
        while self.constants.len() < left {
            left = self.constants.len();
            let found = &mut self.found;
            self.constants.retain(|(name, of, expr)| {
                let Some(value) = value(expr, &found.constants) else { return true };
                found.constants.insert(name.clone(), Constant { of: of.clone(), value });
                false
            });
        }
        let Declarations { constants, structures, .. } = &mut self.found;
        for (_, of) in structures.values_mut().flat_map(|structure| &mut structure.fields) {
            if let Type::Array { length, .. } = of
                && let Some(known) = constants.get(length)
            {
                *length = known.value.to_string();
            }
        }
        self.found
    }

    fn prototype(&mut self, of: &syn::Signature) {
        let argument = |argument: &syn::FnArg| match argument {
            syn::FnArg::Typed(typed) => type_of(&typed.ty),
            syn::FnArg::Receiver(_) => unreachable!("C functions have no receiver"),
        };
        let result = match &of.output {
            syn::ReturnType::Default => Type::Named("()".into()),
            syn::ReturnType::Type(_, result) => type_of(result),
        };
        let arguments = of.inputs.iter().map(argument).collect();
        self.found.functions.insert(of.ident.to_string(), Prototype { arguments, result });
    }

    fn fields<'a>(
        &mut self,
        name: &syn::Ident,
        is_union: bool,
        attributes: &[syn::Attribute],
        fields: impl Iterator<Item = &'a syn::Field>,
    ) {
        let named = |field: &syn::Field| {
            let name = field.ident.as_ref()?.to_string();
            Some((name.trim_start_matches("r#").to_string(), type_of(&field.ty)))
        };
        let fields = fields.filter_map(named).collect();
        let is_in_c_layout = attributes.iter().any(|attribute| text(attribute) == "#[repr(C)]");
        let structure = Structure { is_union, is_in_c_layout, fields };
        self.found.structures.insert(name.to_string(), structure);
    }
}

impl Visit<'_> for Reader {
    fn visit_item_mod(&mut self, item: &syn::ItemMod) {
        if !item.attrs.iter().any(|attribute| text(attribute) == "#[cfg(test)]") {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &syn::ItemFn) {
        if item.sig.abi.is_some() {
            self.prototype(&item.sig);
        }
    }

    fn visit_foreign_item_fn(&mut self, item: &syn::ForeignItemFn) {
        self.prototype(&item.sig);
    }

    fn visit_item_const(&mut self, item: &syn::ItemConst) {
        let of = type_of(&item.ty).to_string();
        self.constants.push((item.ident.to_string(), of, (*item.expr).clone()));
    }

    fn visit_item_struct(&mut self, item: &syn::ItemStruct) {
        self.fields(&item.ident, false, &item.attrs, item.fields.iter());
    }

    fn visit_item_union(&mut self, item: &syn::ItemUnion) {
        self.fields(&item.ident, true, &item.attrs, item.fields.named.iter());
    }

    fn visit_item_type(&mut self, item: &syn::ItemType) {
        self.found.aliases.insert(item.ident.to_string(), type_of(&item.ty));
    }
}

fn text(of: impl ToTokens) -> String {
    of.to_token_stream().to_string().replace(' ', "")
}

/// A type without the path to it.
fn type_of(of: &syn::Type) -> Type {
    match of {
        syn::Type::Ptr(pointer) => Type::Pointer {
            is_mutable: pointer.mutability.is_some(),
            to: Box::new(type_of(&pointer.elem)),
        },
        syn::Type::Array(array) => Type::Array {
            of: Box::new(type_of(&array.elem)),
            length: value(&array.len, &BTreeMap::new())
                .map_or_else(|| text(&array.len), |length| length.to_string()),
        },
        syn::Type::Path(path) => {
            let last = text(path.path.segments.last().expect("a name"));
            let number = NUMBERS.iter().find(|(c, _)| *c == last);
            Type::Named(number.map_or(last, |(_, rust)| (*rust).into()))
        }
        other => Type::Named(text(other)),
    }
}

/// What an expression of numbers and constants is worth.
fn value(of: &syn::Expr, known: &BTreeMap<String, Constant>) -> Option<i64> {
    match of {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(number), .. }) => {
            number.base10_parse().ok()
        }
        syn::Expr::Unary(syn::ExprUnary { op: syn::UnOp::Neg(_), expr, .. }) => {
            Some(-value(expr, known)?)
        }
        syn::Expr::Paren(inner) => value(&inner.expr, known),
        syn::Expr::Cast(inner) => value(&inner.expr, known),
        syn::Expr::Binary(pair) => {
            let (left, right) = (value(&pair.left, known)?, value(&pair.right, known)?);
            match pair.op {
                syn::BinOp::BitOr(_) => Some(left | right),
                syn::BinOp::Shl(_) => Some(left << right),
                _ => None,
            }
        }
        syn::Expr::Path(path) => match text(path).as_str() {
            "c_int::MIN" | "i32::MIN" => Some(i32::MIN.into()),
            "c_int::MAX" | "i32::MAX" => Some(i32::MAX.into()),
            name => known.get(name).map(|known| known.value),
        },
        _ => None,
    }
}
