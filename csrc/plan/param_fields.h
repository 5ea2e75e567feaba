// The fields of each family's parameters, by name: what saved plans hold, and what texts print of a family that has no
// words of its own.
#pragma once
#include <array>

#include "base/json_struct.h"
#include "device/abi/abi.h"

namespace ark::json {

template <>
struct Fields<abi::ProgramParams> {
  using T = abi::ProgramParams;
  static constexpr auto list = std::tuple{field("program", &T::program),   field("first_operand", &T::first_operand),
                                          field("num_dims", &T::num_dims), field("reduce_dims", &T::reduce_dims),
                                          field("tile", &T::tile),         field("split", &T::split),
                                          field("num_rows", &T::num_rows), field("row_size", &T::row_size)};
};
template <>
struct Fields<abi::Segment> {
  using T = abi::Segment;
  static constexpr auto list = std::tuple{field("first_unit", &T::first_unit),
                                          field("num_units", &T::num_units),
                                          field("column", &T::column),
                                          field("weight", &T::weight),
                                          field("weight2", &T::weight2),
                                          field("program", &T::program),
                                          field("first_operand", &T::first_operand)};
};
template <>
struct Fields<abi::MatmulRowsParams> {
  using T = abi::MatmulRowsParams;
  static constexpr auto list = std::tuple{field("m", &T::m),
                                          field("k", &T::k),
                                          field("num_units", &T::num_units),
                                          field("num_segments", &T::num_segments),
                                          field("lanes", &T::lanes),
                                          field("pair_distance", &T::pair_distance),
                                          field("gated", &T::gated),
                                          field("prologue", &T::prologue),
                                          field("prologue_operand", &T::prologue_operand),
                                          field("weights_immutable", &T::weights_immutable),
                                          field("dtype", &T::dtype),
                                          field("columns", &T::columns),
                                          field("map", &T::map),
                                          field("segment", &T::segment)};
};
template <>
struct Fields<abi::MatmulTileParams> {
  using T = abi::MatmulTileParams;
  static constexpr auto list = std::tuple{field("batch", &T::batch),
                                          field("m", &T::m),
                                          field("n", &T::n),
                                          field("k", &T::k),
                                          field("tile_m", &T::tile_m),
                                          field("tile_n", &T::tile_n),
                                          field("tile_k", &T::tile_k),
                                          field("map_a", &T::map_a),
                                          field("map_b", &T::map_b),
                                          field("map_own", &T::map_own),
                                          field("a_k_major", &T::a_k_major),
                                          field("b_k_major", &T::b_k_major),
                                          field("b_immutable", &T::b_immutable),
                                          field("program", &T::program),
                                          field("first_operand", &T::first_operand),
                                          field("pair_distance", &T::pair_distance),
                                          field("dtype", &T::dtype),
                                          field("a_immutable", &T::a_immutable),
                                          field("own_rows", &T::own_rows),
                                          field("gated", &T::gated)};
  static constexpr std::array retired{std::string_view("group_m")};
};
template <>
struct Fields<abi::AttentionParams> {
  using T = abi::AttentionParams;
  static constexpr auto list = std::tuple{field("batch", &T::batch),
                                          field("heads", &T::heads),
                                          field("kv_heads", &T::kv_heads),
                                          field("queries", &T::queries),
                                          field("keys", &T::keys),
                                          field("head_dim", &T::head_dim),
                                          field("value_dim", &T::value_dim),
                                          field("causal", &T::causal),
                                          field("causal_offset", &T::causal_offset),
                                          field("mask_kind", &T::mask_kind),
                                          field("parts", &T::parts),
                                          field("positions_per_part", &T::positions_per_part),
                                          field("fresh_operand", &T::fresh_operand),
                                          field("tile_q", &T::tile_q),
                                          field("tile_k", &T::tile_k),
                                          field("map", &T::map),
                                          field("dtype", &T::dtype),
                                          field("scale", &T::scale),
                                          field("head_parts", &T::head_parts),
                                          field("tiles_at_once", &T::tiles_at_once)};
};
template <>
struct Fields<abi::MaskRangeParams> {
  using T = abi::MaskRangeParams;
  static constexpr auto list =
      std::tuple{field("batch", &T::batch), field("heads", &T::heads), field("queries", &T::queries),
                 field("keys", &T::keys),   field("block", &T::block), field("mask_kind", &T::mask_kind),
                 field("dtype", &T::dtype)};
};
template <>
struct Fields<abi::ScatterSumParams> {
  using T = abi::ScatterSumParams;
  static constexpr auto list = std::tuple{field("rows", &T::rows),      field("columns", &T::columns),
                                          field("terms", &T::terms),    field("tile_rows", &T::tile_rows),
                                          field("lanes", &T::lanes),    field("vector", &T::vector),
                                          field("dtype", &T::dtype),    field("index_dtype", &T::index_dtype),
                                          field("without", &T::without)};
};
template <>
struct Fields<abi::RowSelectParams> {
  using T = abi::RowSelectParams;
  static constexpr auto list =
      std::tuple{field("rows", &T::rows),       field("size", &T::size),   field("vector", &T::vector),
                 field("by_mass", &T::by_mass), field("round", &T::round), field("parts", &T::parts),
                 field("part", &T::part),       field("tops", &T::tops),   field("listed", &T::listed)};
};
template <>
struct Fields<abi::RowDrawParams> {
  using T = abi::RowDrawParams;
  static constexpr auto list =
      std::tuple{field("rows", &T::rows),   field("size", &T::size),   field("vector", &T::vector),
                 field("stage", &T::stage), field("parts", &T::parts), field("part", &T::part)};
};
}  // namespace ark::json

namespace ark::plan {

/// Calls visit(name, value) for every field that is not an array of structs.
template <class Params, class Visit>
void for_each_field(const Params& params, const Visit& visit) {
  std::apply([&](const auto&... f) { (visit(f.name, params.*f.member), ...); }, json::Fields<Params>::list);
}

}  // namespace ark::plan
