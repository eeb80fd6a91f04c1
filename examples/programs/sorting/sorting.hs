quicksort :: [Int] -> [Int]
quicksort [] = []
quicksort (pivot : rest) =
  quicksort [n | n <- rest, n < pivot] ++ [pivot] ++ quicksort [n | n <- rest, n >= pivot]

main :: IO ()
main = interact (unlines . map show . quicksort . map read . lines)
