/*
 * Operations: what a kernel does to elements, resolved from the type and the operation as the
 * library numbers them.
 */
#pragma once

#include "platform.cuh"

enum Code { SUM, PROD, MAX, MIN, MAX_UNSIGNED, MIN_UNSIGNED, AND, OR, XOR };

struct Operation {
    Code code;
    /* The element's integers have a sign. */
    bool is_signed;
    /* Bytes are truth values. */
    bool is_truth;
    /* Sources are multiplied by a scalar. */
    bool scales;
    /* Finished values are divided. */
    bool divides;
    /* What a mean divides by, and its logarithm if it has one; the same for floats. */
    uint32_t shift;
    uint64_t parts;
    double divisor;
};

/* DataType and ReduceOp in src/types.rs. */
DEVICE Operation resolve(int32_t data_type, int32_t op, uint64_t parts) {
    const bool is_truth = data_type == 66;
    const bool is_unsigned = data_type == 1 || data_type == 3 || data_type == 5 || data_type == 65;
    Operation result = {SUM, !is_unsigned, is_truth, op == 67, op == 4 && parts > 1, 0, parts,
                        double(parts)};
    while (result.shift < 63 && parts >> (result.shift + 1) != 0) result.shift++;
    switch (op) {
    case 1: result.code = is_truth ? AND : PROD; break;
    case 2: result.code = is_truth ? OR : is_unsigned ? MAX_UNSIGNED : MAX; break;
    case 3: result.code = is_truth ? AND : is_unsigned ? MIN_UNSIGNED : MIN; break;
    case 64: result.code = AND; break;
    case 65: result.code = OR; break;
    case 66: result.code = XOR; break;
    default: result.code = is_truth ? OR : SUM;
    }
    return result;
}
