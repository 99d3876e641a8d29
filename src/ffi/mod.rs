//! ffi (placeholder while the layer is being written).
