// Structs to and from JSON by description: specialise Fields<T> with the names and members of T and Enumerators<E> with
// the names of E, or Custom<T> with functions of its own. A member equal to its default is neither written nor
// required. Keys that older texts have and no member takes any more: Fields<T>::retired, an array of their names.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/json.h"

namespace ark::json {

/// static constexpr auto list = std::tuple{field("name", &T::name), ...};
template <class T>
struct Fields;
/// static constexpr int count; static const char* or string_view name(E);
template <class E>
struct Enumerators;
/// static void read(const Value&, T&, const Path&); static void write(Writer&, const T&);
template <class T>
struct Custom;

template <class Pointer>
struct Field {
  std::string_view name;
  Pointer member;
};
template <class Pointer>
constexpr Field<Pointer> field(std::string_view name, Pointer member) {
  return {name, member};
}

/// Where a reader is in the value, for messages: "graph.nodes[3].op". Lives on the stack of the reader.
struct Path {
  const Path* parent = nullptr;
  std::string_view key;  // empty: index
  size_t index = 0;
  friend std::ostream& operator<<(std::ostream& out, const Path& path) {
    if (!path.parent) return out << path.key;
    out << *path.parent;
    return path.key.empty() ? out << '[' << path.index << ']' : out << '.' << path.key;
  }
};

[[noreturn]] inline void wrong_type(const Path& path, std::string_view expected, const Value& actual) {
  throw UserError(cat(path, ": expected ", expected, ", got ", actual.type_name()));
}

template <class T>
concept Described = requires { Fields<T>::list; };
template <class T>
concept Customised = requires(Writer& w, const T& x) { Custom<T>::write(w, x); };
template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};

template <class T>
void read(const Value& from, T& to, const Path& path);

/// A reader skips it, whatever its value is.
template <class T>
constexpr bool is_retired(std::string_view key) {
  if constexpr (requires { Fields<T>::retired; })
    return std::ranges::find(Fields<T>::retired, key) != Fields<T>::retired.end();
  else
    return false;
}

template <class T>
void read_fields(const Value& from, T& to, const Path& path) {
  const Object* members = from.get_if<Object>();
  if (!members) wrong_type(path, "object", from);
  size_t next = 0, used = 0;  // members usually come in the order of the fields
  auto one = [&](const auto& f) {
    if (members->empty()) return;
    const Member* found = nullptr;
    for (size_t i = 0; i < members->size() && !found; ++i) {
      const Member& m = (*members)[(next + i) % members->size()];
      if (m.key != f.name) continue;
      found = &m;
      next += i + 1;
    }
    if (!found) return;
    ++used;
    read(found->value, to.*f.member, Path{&path, f.name});
  };
  std::apply([&](const auto&... f) { (one(f), ...); }, Fields<T>::list);
  if (used == members->size()) return;
  for (const Member& m : *members) {
    bool known = std::apply([&](const auto&... f) { return ((f.name == m.key) || ...); }, Fields<T>::list);
    check<UserError>(known || is_retired<T>(m.key), path, ": unknown key \"", m.key, "\"");
  }
}

template <class E>
void read_enum(const Value& from, E& to, const Path& path) {
  const std::string* text = from.get_if<std::string>();
  if (!text) wrong_type(path, "string", from);
  for (int i = 0; i < Enumerators<E>::count; ++i) {
    to = static_cast<E>(i);
    if (*text == Enumerators<E>::name(to)) return;
  }
  throw UserError(cat(path, ": unknown name \"", *text, "\""));
}

template <class T>
void read_number(const Value& from, T& to, const Path& path) {
  const int64_t* integer = from.get_if<int64_t>();
  if constexpr (std::is_floating_point_v<T>) {
    const double* number = from.get_if<double>();
    const std::string* text = from.get_if<std::string>();
    if (text && (*text == "nan" || *text == "inf" || *text == "-inf")) {
      T inf = std::numeric_limits<T>::infinity();
      to = *text == "nan" ? std::numeric_limits<T>::quiet_NaN() : *text == "inf" ? inf : -inf;
    } else if (number || integer) {
      to = number ? static_cast<T>(*number) : static_cast<T>(*integer);
    } else {
      wrong_type(path, "number", from);
    }
  } else {
    if (!integer) wrong_type(path, "integer", from);
    check<UserError>(std::in_range<T>(*integer), path, ": ", *integer, " does not fit into ", sizeof(T), " bytes");
    to = static_cast<T>(*integer);
  }
}

template <class T>
void read_array(const Value& from, T& to, const Path& path) {
  const Array* items = from.get_if<Array>();
  if (!items) wrong_type(path, "array", from);
  if constexpr (std::is_array_v<T>) {
    check<UserError>(items->size() <= std::extent_v<T>, path, ": expected at most ", std::extent_v<T>,
                     " elements, got ", items->size());
    for (size_t i = 0; i < items->size(); ++i) read((*items)[i], to[i], Path{&path, {}, i});
  } else {
    to.clear();
    to.reserve(items->size());
    for (size_t i = 0; i < items->size(); ++i) {
      typename T::value_type item{};
      read((*items)[i], item, Path{&path, {}, i});
      to.push_back(std::move(item));
    }
  }
}

template <class T>
void read(const Value& from, T& to, const Path& path) {
  if constexpr (Customised<T>) {
    Custom<T>::read(from, to, path);
  } else if constexpr (Described<T>) {
    read_fields(from, to, path);
  } else if constexpr (std::is_same_v<T, bool>) {
    const bool* x = from.get_if<bool>();
    if (!x) wrong_type(path, "bool", from);
    to = *x;
  } else if constexpr (std::is_enum_v<T>) {
    read_enum(from, to, path);
  } else if constexpr (std::is_arithmetic_v<T>) {
    read_number(from, to, path);
  } else if constexpr (std::is_same_v<T, std::string>) {
    const std::string* x = from.get_if<std::string>();
    if (!x) wrong_type(path, "string", from);
    to = *x;
  } else {
    read_array(from, to, path);
  }
}

template <class T>
void write(Writer& out, const T& from);

/// Equal for the writer's purpose: what reads back as the same, bit for bit.
template <class T>
bool same(const T& a, const T& b) {
  if constexpr (std::is_array_v<T>) {
    for (size_t i = 0; i < std::extent_v<T>; ++i)
      if (!same(a[i], b[i])) return false;
    return true;
  } else if constexpr (IsVector<T>::value) {
    return a.empty() && b.empty();
  } else if constexpr (Customised<T>) {
    return Custom<T>::is_default(a);
  } else if constexpr (Described<T>) {
    return std::apply([&](const auto&... f) { return (same(a.*f.member, b.*f.member) && ...); }, Fields<T>::list);
  } else if constexpr (std::is_floating_point_v<T>) {
    return a == b && std::signbit(a) == std::signbit(b);
  } else {
    return a == b;
  }
}

template <class T>
void write_fields(Writer& out, const T& from) {
  static const T kDefault{};
  out.begin_object();
  auto one = [&](const auto& f) {
    if (same(from.*f.member, kDefault.*f.member)) return;
    out.key(f.name);
    write(out, from.*f.member);
  };
  std::apply([&](const auto&... f) { (one(f), ...); }, Fields<T>::list);
  out.end_object();
}

template <class T>
void write(Writer& out, const T& from) {
  if constexpr (Customised<T>) {
    Custom<T>::write(out, from);
  } else if constexpr (Described<T>) {
    write_fields(out, from);
  } else if constexpr (std::is_same_v<T, bool>) {
    out.value(from);
  } else if constexpr (std::is_enum_v<T>) {
    out.value(std::string_view(Enumerators<T>::name(from)));
  } else if constexpr (std::is_floating_point_v<T>) {
    out.value(static_cast<double>(from));
  } else if constexpr (std::is_arithmetic_v<T>) {
    out.value(static_cast<int64_t>(from));
  } else if constexpr (std::is_same_v<T, std::string>) {
    out.value(std::string_view(from));
  } else if constexpr (std::is_same_v<T, std::vector<bool>>) {
    out.begin_array();
    for (bool x : from) out.value(x);
    out.end_array();
  } else {
    out.begin_array();
    for (const auto& x : from) write(out, x);
    out.end_array();
  }
}

}  // namespace ark::json
