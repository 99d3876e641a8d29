//! Names the shared library's interface: programs linked with it look for `libringcomm.so.1`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libringcomm.so.1");
}
