//! What the library takes UCX's interface to be is what UCX's header says, as bindgen reads it.
//!
//! `HEADERS_OF_UCX` is the folder with `ucp/api/ucp.h`; `scripts/test` sets it.

#[path = "../../../src/transport/engine/ucx/declarations.rs"]
#[allow(dead_code, unsafe_code)]
mod declarations;

use declarations::*;
use quote::ToTokens;
use std::collections::BTreeMap;
use std::mem::{offset_of, size_of};
use syn::visit::Visit;

/// What bindgen makes of UCX's header, as Rust source; `None` where there is no header.
fn header() -> Option<syn::File> {
    let folder = std::env::var("HEADERS_OF_UCX").ok()?;
    let text = bindgen::Builder::default()
        .header(format!("{folder}/ucp/api/ucp.h"))
        .clang_arg(format!("-I{folder}"))
        .allowlist_function("ucp_.*")
        .allowlist_var("UC[PS]_.*")
        .allowlist_type("uc[ps]_.*")
        .layout_tests(true)
        .size_t_is_usize(true)
        .generate_comments(false)
        .generate()
        .expect("libclang reads the header")
        .to_string();
    Some(syn::parse_str(&text).expect("bindgen writes Rust"))
}

/// The header, or a word that the test that asks has nothing to do.
fn header_or_skip(test: &str) -> Option<syn::File> {
    let header = header();
    if header.is_none() {
        eprintln!("skipped: {test}: HEADERS_OF_UCX names no folder");
    }
    header
}

/// Every `[..][measure(..) - NUMBER]` that bindgen asserts, and every constant, by name.
#[derive(Default)]
struct Facts {
    measures: BTreeMap<String, usize>,
    constants: BTreeMap<String, i128>,
    prototypes: BTreeMap<String, String>,
    aliases: BTreeMap<String, String>,
}

fn number(expr: &syn::Expr) -> Option<i128> {
    match expr {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(number), .. }) => {
            number.base10_parse().ok()
        }
        syn::Expr::Unary(syn::ExprUnary { op: syn::UnOp::Neg(_), expr, .. }) => {
            number(expr).map(|number| -number)
        }
        _ => None,
    }
}

impl Visit<'_> for Facts {
    fn visit_expr_binary(&mut self, expr: &syn::ExprBinary) {
        if let Some(number) = number(&expr.right) {
            let measure = expr.left.to_token_stream().to_string().replace(' ', "");
            self.measures.insert(measure.replace("::std::mem::", ""), number as usize);
        }
    }

    fn visit_item_const(&mut self, item: &syn::ItemConst) {
        if let Some(number) = number(&item.expr) {
            self.constants.insert(item.ident.to_string(), number);
        }
        syn::visit::visit_item_const(self, item);
    }

    fn visit_item_type(&mut self, item: &syn::ItemType) {
        let of = item.ty.to_token_stream().to_string();
        self.aliases.insert(item.ident.to_string(), of);
    }

    fn visit_signature(&mut self, signature: &syn::Signature) {
        let arguments = signature.inputs.iter().map(|argument| match argument {
            syn::FnArg::Typed(typed) => typed.ty.to_token_stream().to_string(),
            syn::FnArg::Receiver(_) => unreachable!("C functions have no receiver"),
        });
        let result = match &signature.output {
            syn::ReturnType::Default => String::new(),
            syn::ReturnType::Type(_, result) => result.to_token_stream().to_string(),
        };
        let all: Vec<String> = arguments.chain([result]).collect();
        self.prototypes.insert(signature.ident.to_string(), all.join(","));
    }
}

impl Facts {
    fn read(file: &syn::File) -> Facts {
        let mut facts = Facts::default();
        facts.visit_file(file);
        facts
    }

    /// A type as those see it who agree on how to call: a pointer, or so many bytes.
    fn seen(&self, name: &str) -> String {
        let name = name.replace(' ', "").replace("::std::os::raw::", "");
        if name.starts_with('*') || name.contains("Option<") {
            return "pointer".into();
        }
        match name.as_str() {
            "" => "nothing".into(),
            "c_schar" | "i8" => "1".into(),
            "c_int" | "c_uint" | "u32" | "i32" => "4".into(),
            "usize" | "u64" | "c_ulong" => "8".into(),
            alias => match self.aliases.get(alias) {
                Some(of) => self.seen(of),
                None => panic!("what is {alias}?"),
            },
        }
    }

    fn prototype(&self, list: &str) -> String {
        let seen: Vec<String> = list.split(',').map(|one| self.seen(one)).collect();
        seen.join(" ")
    }
}

#[test]
fn every_entry_point_of_ucx_has_the_headers_prototype() {
    let Some(file) = header_or_skip("every_entry_point_of_ucx_has_the_headers_prototype") else {
        return;
    };
    let mut facts = Facts::read(&file);
    for (ours, of) in [("Object", "*mut c_void"), ("UcsStatus", "i8")] {
        facts.aliases.insert(ours.into(), of.into());
    }
    macro_rules! each {
        ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => { $({
            let symbol = concat!("ucp_", stringify!($name));
            let result = concat!("", $(stringify!($result))?);
            let arguments: Vec<&str> = vec![$(stringify!($argument),)* result];
            let theirs = facts.prototypes.get(symbol).unwrap_or_else(|| panic!("no {symbol}"));
            assert_eq!(facts.prototype(&arguments.join(",")), facts.prototype(theirs), "{symbol}");
        })* };
    }
    declarations::entry_points!(each);
}

#[test]
fn every_structure_and_constant_of_ucx_is_the_headers() {
    let Some(file) = header_or_skip("every_structure_and_constant_of_ucx_is_the_headers") else {
        return;
    };
    let facts = Facts::read(&file);
    macro_rules! fields {
        ($(
            $structure:ident = $theirs:ident { $($field:ident $(= $named:ident)?),* $(,)? }
        )*) => { $(
            let theirs = stringify!($theirs);
            let size = facts.measures[&format!("size_of::<{theirs}>()")];
            assert!(size_of::<$structure>() >= size, "{theirs} has {size} bytes");
            $(
                let name = *[stringify!($field), $(stringify!($named))?].last().expect("one");
                let measure = format!("offset_of!({theirs},{name})");
                assert_eq!(offset_of!($structure, $field), facts.measures[&measure], "{measure}");
            )*
        )* };
    }
    fields! {
        Params = ucp_params { field_mask, features, request_size, request_init, request_cleanup,
            tag_sender_mask, mt_workers_shared, estimated_num_eps, estimated_num_ppn, name }
        WorkerParams = ucp_worker_params { field_mask, thread_mode, cpu_mask, events, user_data,
            event_fd, flags, name, am_alignment, client_id }
        EpParams = ucp_ep_params { field_mask, address, err_mode, err_handler, user_data, flags,
            sockaddr, conn_request, name, local_sockaddr }
        AmRecvParam = ucp_am_recv_param { recv_attr, reply_ep }
        AmHandlerParam = ucp_am_handler_param { field_mask, id, flags, callback = cb, arg }
        EpAttributes = ucp_ep_attr { field_mask, entries = transports }
        RequestParam = ucp_request_param_t { op_attr_mask, flags, request, callback = cb, datatype,
            user_data, reply_buffer, memory_type, recv_info, memh }
    }
    let pair = |name: &str| facts.measures[&format!("offset_of!(ucp_err_handler,{name})")];
    let handler = offset_of!(EpParams, err_handler);
    assert_eq!(offset_of!(EpParams, err_arg) - handler, pair("arg") - pair("cb"));
    let constant = |name: &str| {
        let found = facts.constants.iter().find(|(full, _)| full.ends_with(name));
        found.unwrap_or_else(|| panic!("no {name}")).1
    };
    for (name, ours) in [
        ("UCS_OK", i128::from(OK)),
        ("UCS_INPROGRESS", i128::from(IN_PROGRESS)),
        ("UCS_ERR_BUSY", i128::from(BUSY)),
        ("UCS_ERR_LAST", LAST_ERROR as i128),
        ("UCP_FEATURE_WAKEUP", i128::from(features::WAKEUP)),
        ("UCP_FEATURE_AM", i128::from(features::AM)),
        ("UCP_PARAM_FIELD_FEATURES", i128::from(Params::FEATURES)),
        ("UCP_PARAM_FIELD_ESTIMATED_NUM_EPS", i128::from(Params::ESTIMATED_NUM_EPS)),
        ("UCP_WORKER_PARAM_FIELD_THREAD_MODE", i128::from(WorkerParams::THREAD_MODE)),
        ("UCS_THREAD_MODE_SERIALIZED", i128::from(WorkerParams::SERIALIZED)),
        ("UCP_EP_PARAM_FIELD_REMOTE_ADDRESS", i128::from(EpParams::REMOTE_ADDRESS)),
        ("UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE", i128::from(EpParams::ERR_HANDLING_MODE)),
        ("UCP_EP_PARAM_FIELD_ERR_HANDLER", i128::from(EpParams::ERR_HANDLER)),
        ("UCP_ERR_HANDLING_MODE_PEER", i128::from(EpParams::PEER)),
        ("UCP_AM_RECV_ATTR_FLAG_DATA", i128::from(AmRecvParam::DATA)),
        ("UCP_AM_RECV_ATTR_FLAG_RNDV", i128::from(AmRecvParam::RENDEZVOUS)),
        ("UCP_AM_FLAG_PERSISTENT_DATA", i128::from(AmHandlerParam::PERSISTENT_DATA)),
        ("UCP_OP_ATTR_FIELD_FLAGS", i128::from(RequestParam::FLAGS)),
        ("UCP_EP_CLOSE_FLAG_FORCE", i128::from(RequestParam::FORCE)),
        ("UCP_EP_ATTR_FIELD_TRANSPORTS", i128::from(EpAttributes::TRANSPORTS)),
    ] {
        assert_eq!(ours, *constant(name), "{name}");
    }
}
