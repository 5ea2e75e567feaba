// Errors of three kinds and the checks that raise them. Every message says expected, actual and the thing's name.
#pragma once
#include <sstream>
#include <stdexcept>
#include <string>

namespace ark {

/// The caller passed something wrong (mapped to Python's ValueError).
struct UserError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// Legal, but ark does not do it (yet); the front end falls back to ATen (mapped to ark_torch.Unsupported).
struct UnsupportedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// A bug in ark (mapped to RuntimeError).
struct InternalError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// The device or the operating system failed, a deadline passed (mapped to ark_torch.DeviceError).
struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Concatenates its arguments with operator<<.
template <class... Args>
std::string cat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

template <class Error = InternalError, class... Args>
void check(bool condition, const Args&... message) {
  if (!condition) [[unlikely]]
    throw Error(cat(message...));
}

}  // namespace ark
