// Values of a program as C++ expressions.
#pragma once
#include <string>

#include "codegen/program_analysis.h"

namespace ark::codegen {

class ExpressionPrinter : public ProgramAnalysis {
 public:
  using ProgramAnalysis::ProgramAnalysis;

 protected:
  /// Element i of a value; in a value that is printed once per vector, the first element.
  std::string reference(int i) const;
  /// The same as a value of `type`.
  std::string converted(int i, DType type) const;
  /// What an instruction without an access yields.
  std::string arithmetic(int i) const;

  bool first_element_ = false;  // while an expression of a vector's first element is printed
};

}  // namespace ark::codegen
