"""The generated kernels that tests/cuda_compile compiles (names of write_sources).

The plans of the forms NAME_brief lack long programs that NAME has. Where a program is a function that is called, its
PTX changes in a form by the same lines as every other's, as far as compared: 83 more with ranks, 108 with groups, 13
with tracing, in the first fifth of the text; none in a loop but numbers. Registers and spills of the long programs in
these forms are not asked of ptxas: that they follow is an inference. Programs in the kernel's body (products, decode
attention) share its registers: their forms are compiled whole.
"""

KERNELS = (
    "pointwise",
    "pointwise_transposed",
    "pointwise_transposed_copy",
    "pointwise_flat",
    "pieces",
    "row",
    "row_brief_trace",
    "short_rows",
    "places",
    "column",
    "rows",
    "rows_one",
    "rows_eight",
    "rows_sixteen",
    "rows_columns_one",
    "rows_columns_eight",
    "rows_columns_sixteen",
    "rows_columns_lanes_eight",
    "rows_columns_lanes_sixteen",
    "rows_gated_8192",
    "rows_gated_2560",
    "rows_5000",
    "rows_14336",
    "scatter_sum",
    "row_select_loop",
    "decode",
    "attention_tiled",
    "attention_mma",
    "training_forward",
    "training_backward",
    "mixed",
    "small_tiles",
    "small_tiles_half",
    "small_tiles_forward",
    "small_tiles_backward",
    "pointwise_ranks_brief",
    "row_ranks_brief",
    "rows_eight_ranks",
    "training_backward_ranks",
    "mixed_ranks",
    "pointwise_groups_brief",
    "row_groups_brief",
    "rows_eight_groups",
    "training_backward_groups",
    "mixed_groups",
    "short_rows_loop_brief",
    "places_loop_brief",
    "rows_one_loop",  # of every size only by itself, which takes over a minute
    "decode_loop",
    "small_tiles_backward_loop",
    "batch_stores",
    "scattered_two",
    "scattered_four",
    "scattered_eight",
    "scattered_float",
    "gathered_two",
    "gathered_four",
    "mesh_rows",
    "mesh_tiles",
)

# Of these forms NVRTC's front end takes the whole plans as well.
WHOLE = (
    "row_trace",
    "pointwise_ranks",
    "row_ranks",
    "pointwise_groups",
    "row_groups",
    "short_rows_loop",
    "places_loop",
)
