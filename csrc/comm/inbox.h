// Point-to-point messages that arrive at a rank of a host: one thread takes them out of the peers' boxes and hands each
// to the first receive that asked for its sender (or any) and its tag.
//
// A message that nobody has asked for stays in its box, which holds back its sender, unless a receive waits for
// something behind it: then it is kept in memory until somebody asks. Messages of a pair with the same tag are never
// reordered.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/step_channel.h"

namespace ark::comm {

class Inbox {
 public:
  static constexpr int kAnyRank = -1;

  struct Receive {
    void* data = nullptr;  // contiguous, belongs to the inbox until `done` is called
    size_t bytes = 0;
    int from = kAnyRank;
    int64_t tag = 0;
    uint64_t sequence = 0;  // for the text of errors
    Deadline deadline{};
    /// Called once on the inbox's thread: the sender, or why nothing came.
    std::function<void(int from, std::exception_ptr error)> done{};
  };

  explicit Inbox(StepChannel& channel);
  /// Ends what is still waited for with CancelledError.
  ~Inbox();
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  void post(Receive receive);

 private:
  struct Message {
    int from = 0;
    int64_t tag = 0;
    std::vector<std::byte> bytes;
  };
  /// The message that is being taken out of a peer's boxes.
  struct Incoming {
    bool active = false;
    uint64_t position = 0, bytes = 0;
    int64_t tag = 0;
    std::byte* to = nullptr;    // null: nobody wants it any more
    Receive* wanted = nullptr;  // whose it is
    bool keeps = false;         // nobody's yet
    std::vector<std::byte> kept{};
  };
  using Posted = std::list<Receive>;

  void run();
  bool take_posted();
  bool deliver_kept();
  bool take_pieces(int peer);
  bool begin_message(int peer, const std::byte* box);
  void end_message(int peer);
  void check_waits();
  Posted::iterator wanted(int peer, int64_t tag);
  bool asked(int peer) const;
  void finish(Posted::iterator receive, int from, std::exception_ptr error);
  StepChannel::Scope scope(const Receive& receive) const;

  StepChannel& channel_;
  std::vector<Incoming> incoming_;  // by peer
  Posted posted_;                   // of the thread alone
  std::deque<Message> kept_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Receive> fresh_;
  bool closing_ = false;
  std::thread thread_;  // last: uses the others
};

}  // namespace ark::comm
