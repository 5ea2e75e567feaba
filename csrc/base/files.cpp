#include "base/files.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "base/check.h"

namespace ark::files {

std::vector<std::string> list(const std::string& folder) {
  std::vector<std::string> names;
  DIR* handle = opendir(folder.c_str());
  if (!handle) return names;
  while (const dirent* entry = readdir(handle))
    if (std::string_view name = entry->d_name; name != "." && name != "..") names.emplace_back(name);
  closedir(handle);
  std::sort(names.begin(), names.end());
  return names;
}

bool make_folders(const std::string& folder) {
  for (size_t end = folder.find('/', 1);; end = folder.find('/', end + 1)) {
    std::string part = folder.substr(0, end);
    if (mkdir(part.c_str(), 0777) != 0 && errno != EEXIST && errno != EROFS && errno != EACCES) return false;
    if (end == std::string::npos) break;
  }
  struct stat info;
  return stat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

std::optional<std::string> read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  return std::string{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::string write(const std::string& path, std::string_view bytes) {
  errno = 0;
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (!file) return std::strerror(errno);
  bool whole = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  whole = std::fclose(file) == 0 && whole;
  return whole ? "" : std::strerror(errno);
}

std::string replace(const std::string& path, std::string_view bytes) {
  std::string temporary = cat(folder_of(path), "/.", name_of(path), '.', getpid(), ".tmp");
  std::string problem = write(temporary, bytes);
  if (problem.empty() && std::rename(temporary.c_str(), path.c_str()) != 0) problem = std::strerror(errno);
  if (!problem.empty()) remove(temporary);
  return problem;
}

bool remove(const std::string& path) { return unlink(path.c_str()) == 0; }

int64_t size_bytes(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 ? static_cast<int64_t>(info.st_size) : -1;
}

std::string_view name_of(std::string_view path) { return path.substr(path.rfind('/') + 1); }

std::string_view folder_of(std::string_view path) {
  size_t slash = path.rfind('/');
  return slash == path.npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
}

}  // namespace ark::files
