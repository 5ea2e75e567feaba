#include "comm/host_collectives.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace ark::comm {
namespace {

constexpr uint64_t kOneShotBytes = 64 << 10;

Descriptor describe(Collective kind, const HostCollectives::Call& call, uint64_t count, uint64_t stream_bytes) {
  Descriptor d{};
  d.sequence = call.sequence;
  d.kind = static_cast<int32_t>(kind);
  d.dtype = d.reduction = d.root = -1;
  d.count = count;
  d.stream_bytes = stream_bytes;
  std::strncpy(d.element, call.element, sizeof d.element - 1);
  std::strncpy(d.operation, call.operation, sizeof d.operation - 1);
  return d;
}

Descriptor describe(Collective kind, const HostCollectives::Call& call, uint64_t count, DType dtype, Reduction op,
                    int root, uint64_t stream_bytes) {
  Descriptor d = describe(kind, call, count, stream_bytes);
  d.dtype = static_cast<int32_t>(dtype);
  d.reduction = static_cast<int32_t>(op);
  d.root = root;
  return d;
}

std::string text(const Descriptor& d) {
  const auto kind = static_cast<Collective>(d.kind);
  const uint64_t sent = kind == Collective::kAllToAll ? d.stream_bytes : d.count;
  std::string out = cat(d.operation[0] ? d.operation : name(kind), " number ", d.sequence, " of ", sent);
  out += d.dtype >= 0 ? cat(" ", ark::name(static_cast<DType>(d.dtype))) : std::string(" bytes");
  if (d.operation[0]) out += ", sizes by rank";
  if (d.element[0]) out += cat(" (", d.element, ")");
  if (d.reduction >= 0) out += cat(", ", name(static_cast<Reduction>(d.reduction)));
  if (d.root >= 0) out += cat(", root ", d.root);
  return out;
}

bool same(const Descriptor& a, const Descriptor& b) {
  return a.sequence == b.sequence && a.kind == b.kind && a.dtype == b.dtype && a.reduction == b.reduction &&
         a.root == b.root && a.count == b.count && std::strncmp(a.element, b.element, sizeof a.element) == 0;
}

const std::byte* bytes_of(const void* p) { return static_cast<const std::byte*>(p); }
std::byte* bytes_of(void* p) { return static_cast<std::byte*>(p); }

void check_root(int root, int world, Collective kind) {
  check<UserError>(root >= 0 && root < world, name(kind), ": root ", root, " is not in [0, ", world, ")");
}

}  // namespace

const char* name(Collective kind) {
  constexpr const char* kNames[] = {"barrier", "broadcast", "all_reduce",     "reduce",    "all_gather",
                                    "gather",  "scatter",   "reduce_scatter", "all_to_all"};
  return kNames[static_cast<int>(kind)];
}

StepChannel::Scope HostCollectives::scope(Collective kind, const Call& call) const {
  return {
      cat(call.operation[0] ? call.operation : name(kind), " number ", call.sequence, " of group ", channel_.name()),
      call.deadline, call.before};
}

/// In the first step every rank publishes its descriptor beside its data; all compare all, so all ranks raise the same
/// error.
void HostCollectives::agree(const Descriptor& own, const StepChannel::Scope& scope, std::vector<Descriptor>& all) {
  all.assign(channel_.world(), own);
  for (int peer = 0; peer < channel_.world(); ++peer) {
    if (peer == channel_.rank()) continue;
    channel_.peer_step(peer, scope);
    all[peer] = channel_.peer_descriptor(peer);
  }
  for (int peer = 1; peer < channel_.world(); ++peer)
    if (!same(all[0], all[peer]))
      throw UserError(cat("ranks of group ", channel_.name(), " disagree: rank 0 calls ", text(all[0]), ", rank ", peer,
                          " calls ", text(all[peer])));
}

void HostCollectives::run(const Exchange& exchange, const Call& call) {
  StepChannel::Scope where = scope(static_cast<Collective>(exchange.descriptor.kind), call);
  std::vector<Descriptor> all;
  const uint64_t piece = channel_.options().buffer_bytes, own_bytes = exchange.descriptor.stream_bytes;
  for (uint64_t position = 0, longest = 1; position < longest; position += piece) {
    std::byte* buffer = channel_.begin_step(where);
    if (position < own_bytes) std::memcpy(buffer, exchange.send + position, std::min(piece, own_bytes - position));
    if (position == 0) channel_.own_descriptor() = exchange.descriptor;
    channel_.publish_step();
    if (position == 0) {
      agree(exchange.descriptor, where, all);
      if (exchange.check) exchange.check(all);
      for (const Descriptor& d : all) longest = std::max(longest, d.stream_bytes);
    }
    for (const Segment& segment : exchange.copies) {
      uint64_t begin = std::max(segment.offset, position),
               end = std::min(segment.offset + segment.bytes, position + piece);
      if (begin >= end) continue;
      const std::byte* source = channel_.peer_step(segment.peer, where);
      std::memcpy(segment.out + (begin - segment.offset), source + (begin - position), end - begin);
    }
    // A rank that reads nothing still must not run ahead of peers that have not arrived.
    for (int peer = 0; peer < channel_.world(); ++peer) channel_.peer_step(peer, where);
    channel_.finish_step();
  }
}

void HostCollectives::reduce_pieces(std::byte* out, uint64_t position, uint64_t begin, uint64_t end,
                                    const Descriptor& descriptor, std::span<const std::byte* const> peers) {
  std::vector<const void*> sources;
  for (const std::byte* peer : peers) sources.push_back(peer + (begin - position));
  auto dtype = static_cast<DType>(descriptor.dtype);
  comm::reduce(out, sources, (end - begin) / size_bytes(dtype), dtype, static_cast<Reduction>(descriptor.reduction));
}

void HostCollectives::run_reduction(const Descriptor& descriptor, const std::byte* send, std::byte* out,
                                    uint64_t offset, const Call& call) {
  StepChannel::Scope where = scope(static_cast<Collective>(descriptor.kind), call);
  std::vector<Descriptor> all;
  const uint64_t piece = channel_.options().buffer_bytes, total = descriptor.stream_bytes;
  const uint64_t wanted = descriptor.count * size_bytes(static_cast<DType>(descriptor.dtype));
  uint64_t position = 0;
  do {
    std::byte* buffer = channel_.begin_step(where);
    if (position < total) std::memcpy(buffer, send + position, std::min(piece, total - position));
    if (position == 0) channel_.own_descriptor() = descriptor;
    channel_.publish_step();
    if (position == 0) agree(descriptor, where, all);
    std::vector<const std::byte*> peers;
    for (int peer = 0; peer < channel_.world(); ++peer) peers.push_back(channel_.peer_step(peer, where));
    uint64_t begin = std::max(offset, position), end = std::min({offset + wanted, position + piece, total});
    if (out && begin < end) reduce_pieces(out + (begin - offset), position, begin, end, descriptor, peers);
    channel_.finish_step();
    position += piece;
  } while (position < total);
}

void HostCollectives::barrier(const Call& call) {
  run({.descriptor = describe(Collective::kBarrier, call, 0, 0)}, call);
}

void HostCollectives::broadcast(void* data, size_t bytes, int root, const Call& call) {
  check_root(root, channel_.world(), Collective::kBroadcast);
  const bool is_root = channel_.rank() == root;
  Exchange exchange{.descriptor = describe(Collective::kBroadcast, call, bytes, is_root ? bytes : 0)};
  exchange.descriptor.root = root;
  exchange.send = bytes_of(data);
  if (!is_root) exchange.copies.push_back({root, 0, bytes, bytes_of(data)});
  run(exchange, call);
}

void HostCollectives::all_reduce(void* data, size_t count, DType dtype, Reduction op, const Call& call) {
  const uint64_t bytes = count * size_bytes(dtype);
  Descriptor descriptor = describe(Collective::kAllReduce, call, count, dtype, op, -1, bytes);
  // One step where every rank reads everything, or two where it reads 2 / world of it: the second step pays from about
  // 64 KB.
  if (bytes <= kOneShotBytes || channel_.world() == 1)
    run_reduction(descriptor, bytes_of(data), bytes_of(data), 0, call);
  else
    run_two_shot(descriptor, bytes_of(data), call);
}

void HostCollectives::run_two_shot(const Descriptor& descriptor, std::byte* data, const Call& call) {
  StepChannel::Scope where = scope(Collective::kAllReduce, call);
  std::vector<Descriptor> all;
  const uint64_t element = size_bytes(static_cast<DType>(descriptor.dtype)), total = descriptor.stream_bytes;
  const uint64_t piece = channel_.options().buffer_bytes / element * element;
  const int world = channel_.world();
  for (uint64_t position = 0; position < total; position += piece) {
    const uint64_t bytes = std::min(piece, total - position);
    auto slice = [&](int owner) { return position + bytes / element * owner / world * element; };
    std::memcpy(channel_.begin_step(where), data + position, bytes);
    if (position == 0) channel_.own_descriptor() = descriptor;
    channel_.publish_step();
    if (position == 0) agree(descriptor, where, all);
    std::vector<const std::byte*> peers;
    for (int peer = 0; peer < world; ++peer) peers.push_back(channel_.peer_step(peer, where));
    std::byte* mine = data + slice(channel_.rank());
    const uint64_t begin = slice(channel_.rank()), end = slice(channel_.rank() + 1);
    if (begin < end) reduce_pieces(mine, position, begin, end, descriptor, peers);
    channel_.finish_step();
    std::byte* buffer = channel_.begin_step(where);
    if (begin < end) std::memcpy(buffer + (begin - position), mine, end - begin);
    channel_.publish_step();
    for (int peer = 0; peer < world; ++peer) {
      const std::byte* source = channel_.peer_step(peer, where);
      if (peer == channel_.rank() || slice(peer) == slice(peer + 1)) continue;
      std::memcpy(data + slice(peer), source + (slice(peer) - position), slice(peer + 1) - slice(peer));
    }
    channel_.finish_step();
  }
}

void HostCollectives::reduce(void* data, size_t count, DType dtype, Reduction op, int root, const Call& call) {
  check_root(root, channel_.world(), Collective::kReduce);
  const uint64_t bytes = count * size_bytes(dtype);
  run_reduction(describe(Collective::kReduce, call, count, dtype, op, root, bytes), bytes_of(data),
                channel_.rank() == root ? bytes_of(data) : nullptr, 0, call);
}

void HostCollectives::reduce_scatter(const void* in, void* out, size_t count, DType dtype, Reduction op,
                                     const Call& call) {
  const uint64_t bytes = count * size_bytes(dtype);
  run_reduction(describe(Collective::kReduceScatter, call, count, dtype, op, -1, bytes * channel_.world()),
                bytes_of(in), bytes_of(out), bytes * channel_.rank(), call);
}

void HostCollectives::all_gather(const void* in, void* out, size_t bytes, const Call& call) {
  Exchange exchange{.descriptor = describe(Collective::kAllGather, call, bytes, bytes)};
  exchange.send = bytes_of(in);
  for (int peer = 0; peer < channel_.world(); ++peer)
    exchange.copies.push_back({peer, 0, bytes, bytes_of(out) + peer * bytes});
  run(exchange, call);
}

void HostCollectives::gather(const void* in, void* out, size_t bytes, int root, const Call& call) {
  check_root(root, channel_.world(), Collective::kGather);
  Exchange exchange{.descriptor = describe(Collective::kGather, call, bytes, bytes)};
  exchange.descriptor.root = root;
  exchange.send = bytes_of(in);
  if (channel_.rank() == root)
    for (int peer = 0; peer < channel_.world(); ++peer)
      exchange.copies.push_back({peer, 0, bytes, bytes_of(out) + peer * bytes});
  run(exchange, call);
}

void HostCollectives::scatter(const void* in, void* out, size_t bytes, int root, const Call& call) {
  check_root(root, channel_.world(), Collective::kScatter);
  const bool is_root = channel_.rank() == root;
  Exchange exchange{.descriptor = describe(Collective::kScatter, call, bytes, is_root ? bytes * channel_.world() : 0)};
  exchange.descriptor.root = root;
  exchange.send = bytes_of(in);
  exchange.copies.push_back({root, bytes * channel_.rank(), bytes, bytes_of(out)});
  run(exchange, call);
}

void HostCollectives::all_to_all(const void* in, std::span<const uint64_t> to, void* out,
                                 std::span<const uint64_t> from, const Call& call) {
  const int world = channel_.world(), rank = channel_.rank();
  check<UserError>(static_cast<int>(to.size()) == world && static_cast<int>(from.size()) == world,
                   "all_to_all: expected sizes for ", world, " ranks, got ", to.size(), " and ", from.size());
  Exchange exchange{.descriptor = describe(Collective::kAllToAll, call, 0, 0)};
  for (int peer = 0; peer < world; ++peer) {
    exchange.descriptor.stream_bytes += exchange.descriptor.bytes_to[peer] = to[peer];
    exchange.descriptor.bytes_from[peer] = from[peer];
  }
  exchange.send = bytes_of(in);
  std::vector<Segment>& copies = exchange.copies;
  exchange.check = [&copies, from, out, world, rank,
                    what = scope(Collective::kAllToAll, call).what](const std::vector<Descriptor>& all) {
    for (int a = 0; a < world; ++a)  // every pair, so that all ranks raise
      for (int b = 0; b < world; ++b)
        check<UserError>(all[a].bytes_to[b] == all[b].bytes_from[a], what, ": rank ", a, " sends ", all[a].bytes_to[b],
                         " bytes to rank ", b, ", which expects ", all[b].bytes_from[a]);
    std::byte* at = bytes_of(out);
    for (int peer = 0; peer < world; ++peer) {
      uint64_t offset = 0;
      for (int other = 0; other < rank; ++other) offset += all[peer].bytes_to[other];
      copies.push_back({peer, offset, from[peer], at});
      at += from[peer];
    }
  };
  run(exchange, call);
}

void HostCollectives::send(const void* data, size_t bytes, int to, int64_t tag, const Call& call) {
  StepChannel::Scope where{cat("send number ", call.sequence, " to rank ", to, " of group ", channel_.name()),
                           call.deadline};
  const size_t piece = channel_.options().box_bytes - sizeof(PieceHeader);
  size_t position = 0;
  do {
    std::byte* box = channel_.begin_send(to, where);
    PieceHeader header{bytes, tag};
    std::memcpy(box, &header, sizeof header);
    if (bytes) std::memcpy(box + sizeof header, bytes_of(data) + position, std::min(piece, bytes - position));
    channel_.publish_send(to);
    position += piece;
  } while (position < bytes);
}

}  // namespace ark::comm
