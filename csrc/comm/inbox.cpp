#include "comm/inbox.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "comm/backoff.h"

namespace ark::comm {

Inbox::Inbox(StepChannel& channel) : channel_(channel), incoming_(channel.world()), thread_([this] { run(); }) {}

Inbox::~Inbox() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Inbox::post(Receive receive) {
  {
    std::lock_guard lock(mutex_);
    fresh_.push_back(std::move(receive));
  }
  changed_.notify_one();
}

StepChannel::Scope Inbox::scope(const Receive& r) const {
  return {cat("receive number ", r.sequence, " from ", r.from == kAnyRank ? "any rank" : cat("rank ", r.from),
              " of group ", channel_.name()),
          r.deadline};
}

void Inbox::run() {
  constexpr uint64_t kTurnsBetweenChecks = 4096;  // where messages never stop coming
  Backoff backoff;
  for (uint64_t turn = 1; take_posted(); ++turn) {
    if (turn % kTurnsBetweenChecks == 0) check_waits();
    bool moved = deliver_kept();
    for (int peer = 0; peer < channel_.world(); ++peer)
      if (peer != channel_.rank()) moved = take_pieces(peer) || moved;
    if (moved)
      backoff.reset();
    else
      backoff.pause([this] { check_waits(); });
  }
  while (!posted_.empty())
    finish(posted_.begin(), kAnyRank,
           std::make_exception_ptr(CancelledError(
               cat(scope(posted_.front()).what, " on rank ", channel_.rank(), ": the group was destroyed"))));
}

/// Sleeps while nothing is waited for; false when the inbox closes.
bool Inbox::take_posted() {
  std::unique_lock lock(mutex_);
  if (posted_.empty()) changed_.wait(lock, [this] { return closing_ || !fresh_.empty(); });
  for (Receive& receive : fresh_) posted_.push_back(std::move(receive));
  fresh_.clear();
  return !closing_;
}

Inbox::Posted::iterator Inbox::wanted(int peer, int64_t tag) {
  return std::find_if(posted_.begin(), posted_.end(), [&](const Receive& r) {
    return (r.from == peer || r.from == kAnyRank) && r.tag == tag &&
           std::none_of(incoming_.begin(), incoming_.end(), [&](const Incoming& i) { return i.wanted == &r; });
  });
}

bool Inbox::asked(int peer) const {
  return std::any_of(posted_.begin(), posted_.end(),
                     [&](const Receive& r) { return r.from == peer || r.from == kAnyRank; });
}

void Inbox::finish(Posted::iterator receive, int from, std::exception_ptr error) {
  for (Incoming& incoming : incoming_)
    if (incoming.wanted == &*receive) {  // the rest of it goes nowhere
      incoming.wanted = nullptr;
      incoming.to = nullptr;
    }
  Receive ended = std::move(*receive);
  posted_.erase(receive);
  ended.done(from, std::move(error));
}

namespace {

std::exception_ptr wrong_size(const std::string& what, int from, uint64_t sent, uint64_t expected) {
  return std::make_exception_ptr(UserError(cat(what, ": rank ", from, " sent ", sent, " bytes, expected ", expected)));
}

}  // namespace

bool Inbox::deliver_kept() {
  bool any = false;
  for (auto message = kept_.begin(); message != kept_.end();) {
    auto receive = wanted(message->from, message->tag);
    if (receive == posted_.end()) {
      ++message;
      continue;
    }
    any = true;
    std::exception_ptr error;
    if (receive->bytes != message->bytes.size())
      error = wrong_size(scope(*receive).what, message->from, message->bytes.size(), receive->bytes);
    else if (receive->bytes)
      std::memcpy(receive->data, message->bytes.data(), receive->bytes);
    finish(receive, message->from, error);
    message = kept_.erase(message);
  }
  return any;
}

/// False: the message stays where it is.
bool Inbox::begin_message(int peer, const std::byte* box) {
  if (!asked(peer)) return false;
  PieceHeader header;
  std::memcpy(&header, box, sizeof header);
  Incoming next{.active = true, .bytes = header.message_bytes, .tag = header.tag};
  auto receive = wanted(peer, header.tag);
  if (receive == posted_.end()) {
    next.keeps = true;
    next.kept.resize(header.message_bytes);
    next.to = next.kept.data();
  } else if (receive->bytes == header.message_bytes) {
    next.wanted = &*receive;
    next.to = static_cast<std::byte*>(receive->data);
  } else {
    finish(receive, peer, wrong_size(scope(*receive).what, peer, header.message_bytes, receive->bytes));
  }
  incoming_[peer] = std::move(next);
  return true;
}

void Inbox::end_message(int peer) {
  Incoming ended = std::move(incoming_[peer]);
  incoming_[peer] = Incoming{};
  if (ended.wanted) {
    auto receive = std::find_if(posted_.begin(), posted_.end(), [&](const Receive& r) { return &r == ended.wanted; });
    return finish(receive, peer, nullptr);
  }
  if (!ended.keeps) return;
  kept_.push_back({peer, ended.tag, std::move(ended.kept)});
  deliver_kept();  // whoever has asked for it meanwhile: the next message may be of the same tag
}

/// At most what the boxes hold, so that peers take turns.
bool Inbox::take_pieces(int peer) {
  const uint64_t most = channel_.options().box_bytes - sizeof(PieceHeader);
  bool any = false;
  for (int i = 0; i < 2; ++i) {
    const std::byte* box = channel_.arrived_piece(peer);
    if (!box || (!incoming_[peer].active && !begin_message(peer, box))) break;
    Incoming& incoming = incoming_[peer];
    const uint64_t bytes = std::min(most, incoming.bytes - incoming.position);
    if (incoming.to && bytes) std::memcpy(incoming.to + incoming.position, box + sizeof(PieceHeader), bytes);
    incoming.position += bytes;
    channel_.finish_receive(peer);
    if (incoming.position == incoming.bytes) end_message(peer);
    any = true;
  }
  return any;
}

/// Ends receives that nothing can come for: the deadline, a failure, a sender that has died or left.
void Inbox::check_waits() {
  for (auto receive = posted_.begin(); receive != posted_.end();) {
    auto current = receive++;
    try {
      channel_.check_message(scope(*current), current->from);
    } catch (...) {
      finish(current, kAnyRank, std::current_exception());
    }
  }
}

}  // namespace ark::comm
