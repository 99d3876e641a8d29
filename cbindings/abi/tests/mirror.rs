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
            size, magic, version, timeoutMs, buffSize, deterministic, spins, debug, protection,
            algorithm, tuningFile, interfaces, ports, nsocks, device,
            initTimeoutMs, net,
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
    for path in ringcomm_abi::sources("src/ffi") {
        let text = std::fs::read_to_string(path).expect("a source");
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

/// Every integer constant in the header: those of an enum by their own names.
fn constants() -> BTreeMap<String, i64> {
    let mut all = BTreeMap::new();
    for item in read_back().items {
        if let syn::Item::Const(constant) = item {
            let text = constant.expr.to_token_stream().to_string().replace(' ', "");
            if let Ok(number) = text.parse::<i64>() {
                let name = constant.ident.to_string();
                let own = name.split_once("_t_").map_or(name.as_str(), |(_, own)| own);
                all.insert(own.to_string(), number);
            }
        }
    }
    all
}

/// What programs are compiled with, in letters and digits: those of NCCL's names are NCCL's
/// (`nccl.h.in`), the others start at 64 where NCCL may add more.
const NUMBERS: [(&str, i64); 53] = [
    ("ringSuccess", 0),
    ("ringUnhandledCudaError", 1),
    ("ringSystemError", 2),
    ("ringInternalError", 3),
    ("ringInvalidArgument", 4),
    ("ringInvalidUsage", 5),
    ("ringRemoteError", 6),
    ("ringInProgress", 7),
    ("ringTimeout", 8),
    ("ringAborted", 64),
    ("ringInt8", 0),
    ("ringUint8", 1),
    ("ringInt32", 2),
    ("ringUint32", 3),
    ("ringInt64", 4),
    ("ringUint64", 5),
    ("ringFloat16", 6),
    ("ringFloat32", 7),
    ("ringFloat64", 8),
    ("ringBfloat16", 9),
    ("ringFloat8e4m3", 10),
    ("ringFloat8e5m2", 11),
    ("ringInt16", 64),
    ("ringUint16", 65),
    ("ringBool", 66),
    ("ringSum", 0),
    ("ringProd", 1),
    ("ringMax", 2),
    ("ringMin", 3),
    ("ringAvg", 4),
    ("ringBand", 64),
    ("ringBor", 65),
    ("ringBxor", 66),
    ("ringScalarDevice", 0),
    ("ringScalarHostImmediate", 1),
    ("ringCollAllReduce", 0),
    ("ringCollReduceScatter", 1),
    ("ringCollAllGather", 2),
    ("ringCollBroadcast", 3),
    ("ringCollReduce", 4),
    ("ringCollAllToAll", 5),
    ("ringCollGather", 6),
    ("ringCollScatter", 7),
    ("ringCollBarrier", 8),
    ("RING_UNIQUE_ID_BYTES", 128),
    ("RING_MAGIC", 0x7269_6e67),
    ("RING_CONFIG_UNDEF_INT", i32::MIN as i64),
    ("RING_PROTECTION_CLEAR", 0),
    ("RING_PROTECTION_CHECKSUM", 1),
    ("RING_PROTECTION_ENCRYPTED", 2),
    ("RING_SPLIT_NOCOLOR", -1),
    ("RING_SHRINK_DEFAULT", 0),
    ("RING_SHRINK_ABORT", 1),
];

#[test]
fn every_constant_has_the_number_that_programs_were_compiled_with() {
    let mut found = constants();
    // These follow the release.
    for name in ["RING_MAJOR", "RING_MINOR", "RING_PATCH", "RING_VERSION_CODE"] {
        assert!(found.remove(name).is_some(), "{name}");
    }
    assert_eq!(found.remove("RING_NAME_BYTES"), Some(32));
    let wanted = NUMBERS.map(|(name, number)| (name.to_string(), number)).into();
    assert_eq!(found, wanted);
}

#[test]
fn every_enum_constant_has_the_same_number_in_c_and_rust() {
    use ringcomm::types::{DataType, ReduceOp};
    let in_c = constants();
    let find = |name: &str| *in_c.get(name).unwrap_or_else(|| panic!("{name}: {in_c:?}"));
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
