//! The header, read back by a C compiler's eyes, says what the library's Rust says.
//!
//! bindgen asks libclang for every function, constant and layout in `include/ringcomm.h`; the
//! other side is Rust's own: `size_of`, `offset_of!`, and the functions' signatures in `src/ffi`.

use quote::ToTokens;
use ringcomm::ffi::types::*;
use std::collections::BTreeMap;
use std::mem::{align_of, offset_of, size_of};
use syn::visit::Visit;

/// What bindgen makes of the header, as Rust source.
fn read_back() -> syn::File {
    let header = ringcomm_abi::root().join("include/ringcomm.h");
    let text = bindgen::Builder::default()
        .header(header.to_str().expect("a path in UTF-8"))
        .allowlist_file(".*ringcomm.h")
        .layout_tests(true)
        .size_t_is_usize(true)
        .generate_comments(false)
        .generate()
        .expect("libclang reads the header (scripts/test sets LIBCLANG_PATH)")
        .to_string();
    syn::parse_str(&text).expect("bindgen writes Rust")
}

/// Every `[..][measure(..) - NUMBER]` that bindgen asserts, as `measure(..)` to number.
#[derive(Default)]
struct Measures(BTreeMap<String, usize>);

impl Visit<'_> for Measures {
    fn visit_expr_binary(&mut self, expr: &syn::ExprBinary) {
        if let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(number), .. }) = &*expr.right {
            let measure = expr.left.to_token_stream().to_string().replace(' ', "");
            let measure = measure.replace("::std::mem::", "");
            self.0.insert(measure, number.base10_parse().expect("a number"));
        }
    }
}

/// The same measures, taken by Rust.
macro_rules! measures {
    ($($structure:ident { $($field:ident),* $(,)? })*) => {{
        let mut all = BTreeMap::new();
        $(
            let name = stringify!($structure);
            all.insert(format!("size_of::<{name}>()"), size_of::<$structure>());
            all.insert(format!("align_of::<{name}>()"), align_of::<$structure>());
            $(all.insert(
                format!("offset_of!({name},{})", stringify!($field)),
                offset_of!($structure, $field),
            );)*
        )*
        all
    }};
}

#[test]
fn every_structure_has_the_same_layout_in_c_and_rust() {
    let mut in_c = Measures::default();
    in_c.visit_file(&read_back());
    let in_rust = measures! {
        ringUniqueId { internal }
        ringConfig_t {
            size, magic, version, timeoutMs, bufferBytes, deterministic, spins, debug, protection,
            algorithm, profile, interfaces, ports, sockets, reserved,
        }
        ringExplain_t {
            size, magic, version, algorithm, transport, channels, chunks, slices, sliceBytes,
            predictedUs, directAlgorithm, directPredictedUs, directInPlace,
        }
    };
    assert_eq!(in_c.0, in_rust);
}

/// A type in one spelling, whichever of the two sources wrote it.
fn type_name(of: &syn::Type) -> String {
    let mut name = of.to_token_stream().to_string();
    for prefix in [":: std :: os :: raw ::", ":: std :: ffi ::", ":: std :: option ::"] {
        name = name.replace(prefix, "");
    }
    // The unchecked forms have their enum's name in C.
    for raw in ["DataType", "RedOp", "Result", "ScalarResidence", "Collective"] {
        let c = format!("ring{raw}_t");
        name = name
            .split(' ')
            .map(|word| if word == format!("Raw{raw}") { &c } else { word })
            .collect::<Vec<_>>()
            .join(" ");
    }
    name.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn signature(of: &syn::Signature) -> String {
    let arguments: Vec<String> = of
        .inputs
        .iter()
        .map(|argument| match argument {
            syn::FnArg::Typed(typed) => {
                format!("{}: {}", typed.pat.to_token_stream(), type_name(&typed.ty))
            }
            syn::FnArg::Receiver(_) => unreachable!("C functions have no receiver"),
        })
        .collect();
    let result = match &of.output {
        syn::ReturnType::Default => "()".to_string(),
        syn::ReturnType::Type(_, result) => type_name(result),
    };
    format!("({}) -> {result}", arguments.join(", "))
}

/// Every exported function in `src/ffi`, by name.
fn exported() -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(ringcomm_abi::root().join("src/ffi")).expect("src/ffi") {
        let text = std::fs::read_to_string(entry.expect("an entry").path()).expect("a source");
        for item in syn::parse_file(&text).expect("Rust").items {
            if let syn::Item::Fn(function) = item
                && function.sig.abi.is_some()
            {
                all.insert(function.sig.ident.to_string(), signature(&function.sig));
            }
        }
    }
    all
}

#[test]
fn every_function_has_the_same_prototype_in_c_and_rust() {
    let mut in_c = BTreeMap::new();
    for item in read_back().items {
        if let syn::Item::ForeignMod(foreign) = item {
            for item in foreign.items {
                if let syn::ForeignItem::Fn(function) = item {
                    in_c.insert(function.sig.ident.to_string(), signature(&function.sig));
                }
            }
        }
    }
    let in_rust = exported();
    assert!(in_rust.len() > 40, "the sources were not found: {in_rust:?}");
    assert_eq!(in_c, in_rust);
}

/// The numbers of an enum's variants in the header.
#[test]
fn every_enum_constant_has_the_same_number_in_c_and_rust() {
    use ringcomm::types::{DataType, ReduceOp};
    let mut in_c = BTreeMap::new();
    for item in read_back().items {
        if let syn::Item::Const(constant) = item {
            let text = constant.expr.to_token_stream().to_string().replace(' ', "");
            if let Ok(number) = text.parse::<i64>() {
                in_c.insert(constant.ident.to_string(), number);
            }
        }
    }
    let find = |name: &str| {
        let found = in_c.iter().find(|(key, _)| key.ends_with(&format!("_{name}")));
        *found.unwrap_or_else(|| panic!("{name} is not in the header: {in_c:?}")).1
    };
    let types = [
        ("ringInt8", DataType::Int8),
        ("ringUint8", DataType::Uint8),
        ("ringInt16", DataType::Int16),
        ("ringUint16", DataType::Uint16),
        ("ringInt32", DataType::Int32),
        ("ringUint32", DataType::Uint32),
        ("ringInt64", DataType::Int64),
        ("ringUint64", DataType::Uint64),
        ("ringBool", DataType::Bool),
        ("ringFloat8e4m3", DataType::Float8e4m3),
        ("ringFloat8e5m2", DataType::Float8e5m2),
        ("ringFloat16", DataType::Float16),
        ("ringBfloat16", DataType::Bfloat16),
        ("ringFloat32", DataType::Float32),
        ("ringFloat64", DataType::Float64),
    ];
    assert_eq!(types.map(|(_, data_type)| data_type), DataType::ALL);
    for (name, data_type) in types {
        assert_eq!(find(name), data_type as i64, "{name}");
    }
    let ops = ["Sum", "Prod", "Max", "Min", "Avg", "Band", "Bor", "Bxor"];
    for (name, op) in ops.iter().zip(ReduceOp::ALL) {
        assert_eq!(find(&format!("ring{name}")), op as i64, "{name}");
    }
    let collectives = ringcomm::plan::Collective::ALL;
    for (number, collective) in collectives.iter().enumerate() {
        assert_eq!(find(&format!("ringColl{}", collective.name())), number as i64);
    }
}
