//! What a launch says to a kernel in `kernels/abi.h` is what the library's Rust says in
//! `kernels/abi.rs`.
//!
//! bindgen turns the C header into Rust. Both are structures in C's layout, so they are the same
//! where all fields have the same names, types and order; and every constant has the same value.

use quote::ToTokens;
use std::collections::BTreeMap;

/// Structures as fields in order, and constants, by the names that they have in Rust.
#[derive(Debug, Default, PartialEq)]
struct Abi {
    structures: BTreeMap<String, Vec<(String, String)>>,
    constants: BTreeMap<String, u64>,
}

/// `ringcomm_reduce_args` as Rust names it: `ReduceArgs`.
fn renamed(text: &str) -> String {
    let Some(rest) = text.strip_prefix("ringcomm_") else { return text.into() };
    let word = |word: &str| word[..1].to_uppercase() + &word[1..];
    rest.split('_').map(word).collect()
}

/// A type in one spelling; in the mirror the lengths of arrays are constants.
fn type_name(of: &syn::Type, constants: &BTreeMap<String, u64>) -> String {
    match of {
        syn::Type::Array(array) => {
            let length = array.len.to_token_stream().to_string();
            let length = constants.get(&length).copied().unwrap_or_else(|| value(&array.len));
            format!("[{}; {length}]", type_name(&array.elem, constants))
        }
        other => renamed(&other.to_token_stream().to_string()),
    }
}

fn value(of: &syn::Expr) -> u64 {
    match of {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(number), .. }) => {
            number.base10_parse().expect("a number")
        }
        other => match other.to_token_stream().to_string().replace(' ', "").as_str() {
            "u32::MAX" => u64::from(u32::MAX),
            text => panic!("{text} is no number"),
        },
    }
}

/// What a source says; of another's names only those that are the project's.
fn read(source: &str) -> Abi {
    let mut abi = Abi::default();
    let items = syn::parse_file(source).expect("Rust").items;
    for item in &items {
        if let syn::Item::Const(item) = item
            && item.ident != "_"
        {
            let name = item.ident.to_string();
            let name = name.strip_prefix("RINGCOMM_").unwrap_or(&name);
            abi.constants.insert(name.into(), value(&item.expr));
        }
    }
    for item in &items {
        let syn::Item::Struct(item) = item else { continue };
        let is_in_c = |attribute: &syn::Attribute| {
            attribute.to_token_stream().to_string().replace(' ', "") == "#[repr(C)]"
        };
        let name = renamed(&item.ident.to_string());
        assert!(item.attrs.iter().any(is_in_c), "{name} is not in C's layout");
        let field = |field: &syn::Field| {
            let name = field.ident.as_ref().expect("a name").to_string();
            (name, type_name(&field.ty, &abi.constants))
        };
        let fields = item.fields.iter().map(field).collect();
        abi.structures.insert(name, fields);
    }
    abi
}

/// The header, as bindgen reads it.
fn in_c() -> Abi {
    let header = ringcomm_abi::root().join("kernels/abi.h");
    let text = bindgen::Builder::default()
        .header(header.to_str().expect("a path in UTF-8"))
        .allowlist_file(".*abi.h")
        .layout_tests(false)
        .generate_comments(false)
        .generate()
        .expect("libclang reads the header (scripts/test sets LIBCLANG_PATH)")
        .to_string();
    let mut abi = read(&text);
    // What keeps the header from being read twice has no value.
    abi.constants.remove("ABI_H");
    abi
}

#[test]
fn kernels_and_the_library_mean_the_same_structures_and_constants() {
    let rust = std::fs::read_to_string(ringcomm_abi::root().join("kernels/abi.rs"));
    let (c, rust) = (in_c(), read(&rust.expect("the mirror")));
    assert!(c.structures.len() > 10 && c.constants.len() > 20, "{c:?}");
    assert_eq!(c.structures, rust.structures);
    assert_eq!(c.constants, rust.constants);
}
