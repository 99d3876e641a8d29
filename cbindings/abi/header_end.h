
/** A ringConfig_t in which nothing is set. */
#define RING_CONFIG_INITIALIZER                                                                    \
    {                                                                                              \
        sizeof(ringConfig_t), RING_MAGIC, RING_VERSION_CODE, RING_CONFIG_UNDEF_INT,                \
            RING_CONFIG_UNDEF_INT, RING_CONFIG_UNDEF_INT, RING_CONFIG_UNDEF_INT,                   \
            RING_CONFIG_UNDEF_INT, RING_CONFIG_UNDEF_INT, NULL, NULL, NULL, NULL,                  \
            RING_CONFIG_UNDEF_INT, RING_CONFIG_UNDEF_INT, RING_CONFIG_UNDEF_INT, NULL              \
    }

/** A ringExplain_t for ringCommExplain to fill. */
#define RING_EXPLAIN_INITIALIZER                                                                   \
    {                                                                                              \
        sizeof(ringExplain_t), RING_MAGIC, RING_VERSION_CODE, { 0 }, { 0 }, 0, 0, 0, 0, 0.0, { 0 },\
            0.0, 0                                                                                 \
    }

/** The code of a version, to compare with RING_VERSION_CODE. */
#define RING_VERSION(major, minor, patch) ((major) * 10000 + (minor) * 100 + (patch))

/* NCCL's other names for some types. */
#define ringChar ringInt8
#define ringInt ringInt32
#define ringHalf ringFloat16
#define ringFloat ringFloat32
#define ringDouble ringFloat64
