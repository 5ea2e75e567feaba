// The one logger: lines on standard error. ARK_LOG = error, warn (the default), info or debug.
#pragma once
#include <string_view>

#include "base/check.h"

namespace ark::log {

enum class Level { kError, kWarn, kInfo, kDebug };

/// Whether lines of this level are shown. Reads ARK_LOG once; throws UserError on an unknown name.
bool enabled(Level level);
/// Writes "ark warn: line" in one piece.
void write(Level level, std::string_view line);

template <class... Args>
void error(const Args&... args) {
  if (enabled(Level::kError)) write(Level::kError, cat(args...));
}
template <class... Args>
void warn(const Args&... args) {
  if (enabled(Level::kWarn)) write(Level::kWarn, cat(args...));
}
template <class... Args>
void info(const Args&... args) {
  if (enabled(Level::kInfo)) write(Level::kInfo, cat(args...));
}
template <class... Args>
void debug(const Args&... args) {
  if (enabled(Level::kDebug)) write(Level::kDebug, cat(args...));
}

}  // namespace ark::log
