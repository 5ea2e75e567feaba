#include "comm/fd_exchange.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <exception>
#include <filesystem>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "base/env.h"
#include "base/log.h"

namespace ark::comm {

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = other.release();
  }
  return *this;
}

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) ::close(fd_);
}

int UniqueFd::release() {
  int fd = fd_;
  fd_ = -1;
  return fd;
}

namespace {

constexpr size_t kTokenBytes = 16;

/// What a peer sends first: who it is and the token from the store.
struct Hello {
  int32_t rank;
  char token[2 * kTokenBytes];
};

[[noreturn]] void fail(const std::string& what) { throw DeviceError(cat(what, ": ", std::strerror(errno))); }

std::string random_token() {
  unsigned char bytes[kTokenBytes];
  if (getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes)) fail("getrandom");
  std::string hex;
  for (unsigned char b : bytes) {
    hex += "0123456789abcdef"[b >> 4];
    hex += "0123456789abcdef"[b & 15];
  }
  return hex;
}

bool listens(const std::string& path) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  return ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 || errno != ECONNREFUSED;
}

/// Removes what processes of this user left that were killed while they met: older than a minute, and nobody listens.
void sweep(const std::string& parent) {
  constexpr size_t kNameLength = 10;  // of ark-XXXXXX
  constexpr time_t kOldSeconds = 60;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(parent, ignored)) {
    const std::string path = entry.path(), name = entry.path().filename();
    struct stat info{};
    if (name.size() != kNameLength || name.rfind("ark-", 0) != 0 || ::lstat(path.c_str(), &info) != 0) continue;
    if (!S_ISDIR(info.st_mode) || (info.st_mode & 0777) != 0700 || info.st_uid != ::geteuid()) continue;
    if (::time(nullptr) - info.st_mtime < kOldSeconds || path.size() + 2 >= sizeof(sockaddr_un::sun_path)) continue;
    const std::string socket = path + "/s";
    if (::lstat(socket.c_str(), &info) == 0 && (!S_ISSOCK(info.st_mode) || listens(socket))) continue;
    ::unlink(socket.c_str());
    ::rmdir(path.c_str());
  }
}

/// In $TMPDIR, else in /tmp; the address of a socket is short.
std::string own_directory() {
  constexpr size_t kLongest = 80;
  static std::once_flag swept;
  std::call_once(swept, [] { sweep(env::text("TMPDIR", "/tmp")); });
  for (const std::string& parent : {env::text("TMPDIR", "/tmp"), std::string("/tmp")}) {
    std::string pattern = parent + "/ark-XXXXXX";
    if (pattern.size() < kLongest && mkdtemp(pattern.data())) return pattern;
  }
  fail("mkdtemp /tmp/ark-XXXXXX");
}

/// A listening socket in a directory of its own (mode 0700), removed with it.
class Listener {
 public:
  Listener() {
    directory_ = own_directory();
    path_ = directory_ + "/s";
    fd_ = UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (!fd_.valid()) fail("socket");
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
    if (::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address)) fail(cat("bind ", path_));
    if (::listen(fd_.get(), 64)) fail("listen");
  }
  ~Listener() {
    ::unlink(path_.c_str());
    ::rmdir(directory_.c_str());
  }
  Listener(const Listener&) = delete;
  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }

 private:
  std::string directory_, path_;
  UniqueFd fd_;
};

void wait_readable(int fd, Clock::time_point deadline, const std::string& what) {
  while (true) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) throw DeviceError(cat(what, ": nothing came within the time-out"));
    pollfd entry{fd, POLLIN, 0};
    int ready = ::poll(&entry, 1, static_cast<int>(std::min<long long>(left, 1000)));
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) fail("poll");
  }
}

void send_fd(int socket, int fd) {
  char byte = 1;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  if (::sendmsg(socket, &message, MSG_NOSIGNAL) != 1) fail("sendmsg");
}

UniqueFd receive_fd(int socket) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) fail("recvmsg: the peer refused or went away");
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  check<DeviceError>(header && header->cmsg_type == SCM_RIGHTS, "recvmsg: the message carries no file descriptor");
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return UniqueFd(fd);
}

bool same_user(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == ::geteuid();
}

/// Answers whoever knocks; true for a peer, false for a stranger.
bool serve_one(const Listener& listener, const std::string& token, int fd, Clock::time_point deadline) {
  UniqueFd peer(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!peer.valid()) return false;
  Hello hello{};
  wait_readable(peer.get(), deadline, "a peer that has connected says nothing");
  if (::recv(peer.get(), &hello, sizeof hello, 0) != static_cast<ssize_t>(sizeof hello)) return false;
  if (!same_user(peer.get()) || token.compare(0, std::string::npos, hello.token, sizeof hello.token) != 0) return false;
  send_fd(peer.get(), fd);
  return true;
}

/// Answers the world - 1 peers; strangers are turned away and do not count.
void serve(const Listener& listener, const GroupInfo& group, const std::string& token, int fd,
           Clock::time_point deadline) {
  for (int served = 0; served < group.world - 1;) {
    wait_readable(listener.fd(), deadline,
                  cat("rank ", group.rank, " of ", group.name, " waits for its peers, ", served, " of ",
                      group.world - 1, " have come"));
    served += serve_one(listener, token, fd, deadline);
  }
}

UniqueFd request(const std::string& published, const GroupInfo& group, int from, Clock::time_point deadline) {
  size_t space = published.find(' ');
  check<DeviceError>(space != std::string::npos, "rank ", from, " published a malformed address: ", published);
  std::string path = published.substr(0, space), token = published.substr(space + 1);
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket.valid()) fail("socket");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  check<DeviceError>(path.size() < sizeof address.sun_path, "socket path too long: ", path);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address))
    fail(cat("rank ", group.rank, " cannot reach rank ", from, " at ", path, " (another host, or it has died)"));
  Hello hello{};
  hello.rank = group.rank;
  std::memcpy(hello.token, token.data(), std::min(token.size(), sizeof hello.token));
  if (::send(socket.get(), &hello, sizeof hello, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof hello)) fail("send");
  wait_readable(socket.get(), deadline,
                cat("group ", group.name, ": rank ", group.rank, " waits for the memory of rank ", from));
  return receive_fd(socket.get());
}

/// What a rank has published. A store's own error does not say who is missing.
std::string address_of(Store& store, const GroupInfo& group, const std::string& key, int from,
                       Clock::time_point deadline) {
  try {
    return store.get(key, deadline, from);
  } catch (const std::exception& error) {
    throw DeviceError(cat("group ", group.name, ", rank ", group.rank, ": rank ", from,
                          " has not come to make the group (", error.what(), ")"));
  }
}

}  // namespace

std::vector<UniqueFd> exchange_fds(Store& store, const GroupInfo& group, const std::string& tag, int fd,
                                   Clock::time_point deadline) {
  std::vector<UniqueFd> peers(group.world);
  if (group.world == 1) return peers;
  Listener listener;
  std::string token = random_token(), prefix = cat("ark/", group.name, "/", tag, "/");
  std::exception_ptr server_error;
  std::thread server([&] {
    try {
      serve(listener, group, token, fd, deadline);
    } catch (...) {
      server_error = std::current_exception();
    }
  });
  std::exception_ptr error;
  try {
    store.set(cat(prefix, group.rank), cat(listener.path(), " ", token));
    for (int step = 1; step < group.world; ++step) {
      int from = (group.rank + step) % group.world;
      peers[from] = request(address_of(store, group, cat(prefix, from), from, deadline), group, from, deadline);
    }
  } catch (...) {
    error = std::current_exception();
  }
  server.join();
  store.remove(cat(prefix, group.rank));  // everybody has come, or this group will never be
  if (error) std::rethrow_exception(error);
  if (server_error) std::rethrow_exception(server_error);
  return peers;
}

struct FdServer::Door {
  Listener listener;
  std::string token = random_token();
  GroupInfo group;
  UniqueFd fd;
};

FdServer::FdServer(Store& store, const GroupInfo& group, const std::string& tag, UniqueFd fd)
    : door_(std::make_unique<Door>()) {
  door_->group = group;
  door_->fd = std::move(fd);
  store.set(cat("ark/", group.name, "/", tag, "/", group.rank), cat(door_->listener.path(), " ", door_->token));
  thread_ = std::thread([this] {
    constexpr int kPollMilliseconds = 50;
    for (int served = 0; served < door_->group.world - 1 && !closing_;) {
      pollfd entry{door_->listener.fd(), POLLIN, 0};
      if (::poll(&entry, 1, kPollMilliseconds) <= 0) continue;
      try {
        served += serve_one(door_->listener, door_->token, door_->fd.get(), Clock::now() + std::chrono::seconds(5));
      } catch (const std::exception& error) {
        log::warn("rank ", door_->group.rank, " of ", door_->group.name, ": ", error.what());
      }
    }
    door_.reset();  // everybody has come: no socket stays in the file system
  });
}

FdServer::~FdServer() {
  closing_ = true;
  thread_.join();
}

UniqueFd request_fd(Store& store, const GroupInfo& group, const std::string& tag, int from,
                    Clock::time_point deadline) {
  return request(store.get(cat("ark/", group.name, "/", tag, "/", from), deadline, from), group, from, deadline);
}

}  // namespace ark::comm
