// Files by the operating system's calls. std::filesystem must not be used: torch's library exports a copy of it of
// another version, which takes the place of the one that this code is compiled against (seen to crash with torch 2.11).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ark::files {

/// Names (without the folder) of everything in `folder`, sorted; empty when it cannot be read.
std::vector<std::string> list(const std::string& folder);
/// Makes the folder and those above it. False when it does not exist afterwards.
bool make_folders(const std::string& folder);
/// The whole file, or nothing when it cannot be read.
std::optional<std::string> read(const std::string& path);
/// Writes a file. Empty on success, else the operating system's reason.
std::string write(const std::string& path, std::string_view bytes);
/// As write, but readers see the old file or the whole new one, also when several processes write at once.
std::string replace(const std::string& path, std::string_view bytes);
bool remove(const std::string& path);
/// -1 when there is no such file.
int64_t size_bytes(const std::string& path);
/// What follows the last '/'; what comes before it ("." if nothing).
std::string_view name_of(std::string_view path);
std::string_view folder_of(std::string_view path);

}  // namespace ark::files
